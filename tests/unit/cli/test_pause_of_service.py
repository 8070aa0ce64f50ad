"""`notary pause --service` and `resume --service`: what is noted, who was seen to keep it, and what is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from replica.cli import steer
from replica.health import ReplicaHealth
from replica.notary.codes import Code
from replica.notary.errors import ConfigError
from replica.store.bulletin import NOBODY, Pause
from tests.unit.cli.test_steer import health

AT = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class OneNote:
    """A board that keeps one note, as the database does."""

    note: Pause | None = None
    asked: list[str] = field(default_factory=list)

    async def pause_service(self, reason: str) -> Pause | None:
        self.asked.append("pause")
        if self.note is not None and not self.note.of_service:
            return None
        self.note = Pause(NOBODY, reason, AT)
        return self.note

    async def resume_service(self) -> Pause | None:
        self.asked.append("resume")
        ended, self.note = self.note, None
        return ended


def notary(board: OneNote, serving: str = "all") -> Any:
    """The part of a configuration that the commands use."""

    @asynccontextmanager
    async def opened(_: str) -> AsyncIterator[OneNote]:
        yield board

    return SimpleNamespace(serving=serving, replicas=(), ledgers=lambda: SimpleNamespace(board=opened))


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> dict[str, ReplicaHealth | None]:
    """What the replicas answer when they are asked; to be filled by the test."""
    healths: dict[str, ReplicaHealth | None] = {}

    async def answer(*_: object) -> dict[str, ReplicaHealth | None]:
        return healths

    monkeypatch.setattr(steer, "healths_of", answer)
    monkeypatch.setattr(steer, "PAUSE_SEEN_MAX_S", 0.0)
    return healths


async def test_a_pause_names_who_was_not_seen_to_keep_it(seen: dict[str, ReplicaHealth | None]) -> None:
    """Goal: nobody believes in a pause that a worker has not heard of. Method: one replica keeps it, one knows of it
    and still serves, one does not answer."""
    seen |= {
        "r1": health("r1", service_paused=True),
        "r2": health("r2", service_paused=True, active=True),
        "r3": None,
    }
    board = OneNote()
    assert await steer._pause_service(notary(board), "a drill") == ["r2", "r3"]
    assert board.note is not None
    assert board.note.reason == "a drill"


async def test_an_end_names_who_has_not_heard_of_it(seen: dict[str, ReplicaHealth | None]) -> None:
    """Goal: `resume` says whether there was a pause, and where it lasts. Method: with a pause, and once more."""
    seen |= {"r1": health("r1", service_paused=True), "r2": health("r2")}
    board = OneNote(note=Pause(NOBODY, "a drill", AT))
    assert await steer._resume_service(notary(board)) == (True, ["r1"])
    assert await steer._resume_service(notary(board)) == (False, ["r1"])


@pytest.mark.parametrize(
    ("board", "serving", "what", "asked"),
    [
        (OneNote(), "one", "only a notary whose replicas all serve", []),
        (OneNote(note=Pause("r1", "work", AT)), "all", "fail-over is paused: notary resume", ["pause"]),
    ],
)
async def test_service_is_paused_only_where_it_can_be(
    board: OneNote, serving: str, what: str, asked: list[str], seen: dict[str, ReplicaHealth | None]
) -> None:
    """Goal: no note that nobody heeds. Method: one active; fail-over is paused, whose note stays."""
    before = board.note
    with pytest.raises(ConfigError, match=what) as refused:
        await steer._pause_service(notary(board, serving), "a drill")
    assert refused.value.code is Code.NOT_POSSIBLE_NOW
    assert (board.asked, board.note) == (asked, before)
