"""What operators and replicas leave for one another in Postgres: pauses, and why an activation ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from ha.clock import SystemClock
from replica.marks.keeper import MarkKeeper
from replica.marks.seen_file import MemorySeenFile
from replica.notary.formats import Formats
from replica.notary.marks import ContradictedMarks
from replica.store.bulletin import Bulletin
from replica.store.postgres.board import postgres_board
from tests.contracts.store_contract import (
    TOPIC,
    ContradictedMarksContract,
    Ends,
    NewStore,
    activated,
)
from tests.waiting import eventually

pytestmark = pytest.mark.postgres


def keeper(replica: str) -> MarkKeeper:
    return MarkKeeper(replica, MemorySeenFile(), SystemClock(), database=True)


@asynccontextmanager
async def bulletin_of(dsn: str, replica: str, marks: MarkKeeper | None = None) -> AsyncIterator[Bulletin]:
    bulletin = Bulletin(lambda name: postgres_board(dsn, name), replica, marks or keeper(replica))
    running = asyncio.create_task(bulletin.run(lambda _: None))
    try:
        yield bulletin
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.fixture
async def shared(dsn: str) -> AsyncIterator[ContradictedMarks]:
    async with postgres_board(dsn, "test") as board:
        yield board


class TestContradictedMarks(ContradictedMarksContract):
    """See ContradictedMarksContract."""


async def test_a_pause_bars_everyone_but_the_keeper_until_it_is_over(
    new_store: NewStore, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: nobody takes over while operators work. Method: pause, a bulletin of each kind, resume."""
    monkeypatch.setattr("replica.store.bulletin.POLL_S", 0.02)
    async with postgres_board(dsn, "test") as board:
        assert await board.pause("nothing to keep yet") is None
        await activated(new_store)  # replica "r"
        assert await board.pause("new disks") == await board.paused()
        async with bulletin_of(dsn, "r") as keeper, bulletin_of(dsn, "r2") as other:
            assert keeper.is_barred()  # it has not looked yet
            await eventually(lambda: _is(lambda: not keeper.is_barred() and other.pause is not None))
            assert other.is_barred()
            ended = await board.resume()
            assert ended is not None
            assert (ended.keeper, ended.reason) == ("r", "new disks")
            await eventually(lambda: _is(lambda: not other.is_barred()))
        assert await board.resume() is None


async def test_the_end_of_an_activation_is_told_later_when_its_session_was_lost(
    new_store: NewStore, dsn: str, ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: the holder's own record arrives. Method: leave it while the database cannot be reached, then let it in."""
    monkeypatch.setattr("replica.store.bulletin.POLL_S", 0.02)
    await activated(new_store)
    async with bulletin_of("host=127.0.0.1 port=1", "r") as bulletin:
        bulletin.note_end(1, "its session was lost")
        await eventually(lambda: _is(lambda: not bulletin._reached))
        assert bulletin.is_barred()  # asked, no answer: it may be paused
        monkeypatch.setattr(bulletin, "_open_board", lambda name: postgres_board(dsn, name))
        await eventually(lambda: _told(ends))
        assert not bulletin.is_barred()
    async with postgres_board(dsn, "test") as board:
        (activation,) = await board.history(10)
    assert activation.ended_at is not None
    assert activation.ended_at > activation.granted_at


async def _told(ends: Ends) -> bool:
    return await ends() == {1: ("its session was lost", None)}


async def _is(holds: Callable[[], bool]) -> bool:
    return holds()


async def test_what_is_written_is_raised_and_never_lowered(new_store: NewStore, dsn: str) -> None:
    """Goal: two operators at a time go forward. Method: raise each by itself, then lower; what a session receives."""
    async with postgres_board(dsn, "test") as board:
        assert await board.formats() == Formats(2, 3)
        assert await board.raise_formats(Formats(2, 4)) == Formats(2, 4)
        assert await board.raise_formats(Formats(3, 3)) == Formats(3, 4)
    assert await (await new_store()).bind(TOPIC) == Formats(3, 4)
