"""A replica whose log is not there: it waits a little, then leaves it to a person."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from replica.cli import log_set_up
from replica.failure import error_document, exit_code
from replica.following.log_reading import LOG_MISSING_MAX_S, known_log
from replica.log.interface import LogMissing
from replica.log.memory import MemoryLog, MemoryTopic
from replica.notary.errors import LogGone, StoreMismatch
from replica.notary.exit_codes import EXIT_CONFIGURATION
from replica.notary.genesis import decode_genesis


class Clock:
    now_s = 0.0

    def boottime_s(self) -> float:
        return self.now_s

    async def sleep_s(self, duration_s: float) -> None:
        self.now_s += duration_s


class Log:
    """A log that is known from a moment on."""

    def __init__(self, clock: Clock, known_at_s: float) -> None:
        self._clock, self._known_at_s = clock, known_at_s

    async def check(self) -> str:
        if self._clock.now_s < self._known_at_s:
            raise LogMissing("the brokers know no topic of this name")
        return "the id"


async def test_servers_that_have_just_started_are_asked_again() -> None:
    """Goal: no person is called for a cluster that starts. Method: the log is known just in time."""
    clock = Clock()
    assert await known_log(cast(Any, Log(clock, LOG_MISSING_MAX_S)), cast(Any, clock), 0.5) == "the id"


async def test_a_log_that_stays_away_ends_the_replica_for_a_person() -> None:
    """Goal: no crash loop over a deleted topic, and a code that leads to its page. Method: it is never known."""
    clock = Clock()
    with pytest.raises(LogGone) as gone:
        await known_log(cast(Any, Log(clock, 1e9)), cast(Any, clock), 0.5)
    assert clock.now_s == LOG_MISSING_MAX_S
    assert exit_code(gone.value) == EXIT_CONFIGURATION
    document = error_document(gone.value)
    assert document["code"] == "LOG_MISSING"
    assert "runbooks/topic-loss.md" in document["remedy"]


class Admin:
    created = False

    async def topic_id(self) -> str:
        raise LogMissing("the brokers know no topic of this name")

    async def create(self) -> str:
        self.created = True
        return "new"

    async def close(self) -> None:
        pass


class Database:
    def __init__(self, topic_id: str | Exception | None) -> None:
        self._topic_id = topic_id

    def ledgers(self) -> Database:
        return self

    def operator_keys(self) -> list[Any]:
        return []

    async def status(self) -> Any:
        if isinstance(self._topic_id, Exception):
            raise self._topic_id
        return type("Status", (), {"topic_id": self._topic_id})


@pytest.mark.parametrize(
    ("bound", "creates"), [(None, True), (StoreMismatch("no tables"), True), ("the lost topic", False)]
)
def test_an_empty_log_does_not_take_the_place_of_a_lost_one(
    bound: Any, creates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: nobody forgets by one command what was spent. Method: a new one, one without tables, one that published."""
    admin, topic, officer = Admin(), MemoryTopic(), "ab" * 32
    monkeypatch.setattr("replica.log.open.open_log_admin", lambda _: admin)
    monkeypatch.setattr("replica.log.open.open_log", lambda _: MemoryLog(topic))
    creating = log_set_up.create_log(cast(Any, Database(bound)), cast(Any, None), [officer])
    if creates:
        log_id, ledger_id = asyncio.run(creating)
        genesis = decode_genesis(topic.records(0, 1)[0][1])
        assert genesis is not None and genesis.officers == (bytes.fromhex(officer),)
        assert (log_id, ledger_id, topic.end_offset) == ("new", genesis.ledger_id, 1)
    else:
        with pytest.raises(LogGone, match="the lost topic"):
            asyncio.run(creating)
    assert admin.created is creates
