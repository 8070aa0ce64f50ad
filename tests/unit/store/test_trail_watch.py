"""A replica's memory of the operators' trail: what it finds, and what it goes on from."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from replica.store.trail import head_of
from replica.store.trail_watch import CURSOR, TrailWatch
from tests.worlds.trails import KeptHere, line_after, trail_of

LINES = trail_of({}, {"who": "ben"}, {}, {})


def watch_of(kept: KeptHere, folder: Path) -> TrailWatch:
    @asynccontextmanager
    async def board(name: str) -> AsyncIterator[Any]:
        assert name == "r1/trail"
        yield kept

    return TrailWatch(board, "r1", folder / CURSOR, look_every_s=30.0)


async def test_a_trail_that_grows_is_followed_across_restarts(tmp_path: Path) -> None:
    """Goal: no false alarm, and the whole trail is looked at. Method: an empty one; it grows; a process begins anew."""
    kept = KeptHere()
    for count in (0, 2, 2, 4):
        kept.lines = LINES[:count]
        watch = watch_of(kept, tmp_path)
        await watch.look()
        await watch.look()
        assert (watch.broken, watch.entries) == ("", count)
    assert (tmp_path / CURSOR).read_text() == f"{head_of(LINES[3])}\n"


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ([], "entry 3 is gone"),
        (LINES[:2], "entry 3 is gone"),
        ([*LINES[:2], line_after(head_of(LINES[1]), reason="in its place")], "entry 3 is another one"),
        ([*LINES[:3], LINES[3].replace(b"machine", b"another")], "entry 4 has a signature"),
    ],
)
async def test_what_was_seen_must_stay(lines: list[bytes], found: str, tmp_path: Path) -> None:
    """Goal: a tail that is deleted or rewritten is an alarm until it is back. Method: seen, changed, a process begins
    anew, brought back; or the file is deleted, and what is there counts from then on."""
    kept = KeptHere(LINES[:3])
    await watch_of(kept, tmp_path).look()
    kept.lines = lines
    watch = watch_of(kept, tmp_path)
    for _ in range(2):
        await watch.look()
        assert watch.broken.startswith(found)
    kept.lines = LINES
    await watch.look()
    assert (watch.broken, watch.entries) == ("", 4)
    kept.lines = trail_of({"reason": "another history"})
    await watch.look()
    assert watch.broken
    (tmp_path / CURSOR).unlink()
    await watch.look()
    assert (watch.broken, watch.entries) == ("", 1)
