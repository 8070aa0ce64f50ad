"""What a replica knows of a pause, and when."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import cast

import pytest

from ha.clock import SystemClock
from replica.marks.keeper import MarkKeeper
from replica.marks.seen_file import MemorySeenFile
from replica.notary.errors import LogUnavailable
from replica.notary.marks import ContradictedMark
from replica.store.bulletin import Board, Bulletin, Pause
from tests.simulation.virtual import run_virtually
from tests.waiting import eventually

CLOCK = SystemClock()
PAUSED = Pause("r1", "a disk", datetime(2026, 5, 1, tzinfo=UTC))


class BoardHere:
    """One that can be away."""

    def __init__(self) -> None:
        self.is_away = True
        self.is_away_to_marks = False
        self.asked_count = 0
        self.said: Pause | None = PAUSED

    @asynccontextmanager
    async def open(self, name: str) -> AsyncIterator[Board]:
        yield cast(Board, self)

    async def paused(self) -> Pause | None:
        self.asked_count += 1
        if self.is_away:
            raise LogUnavailable("no log node answers")
        return self.said

    async def contradicted_marks(self) -> list[ContradictedMark]:
        if self.is_away_to_marks:
            raise LogUnavailable("no log node answers")
        return []

    async def answers(self, count: int) -> None:
        """Return after that many more questions."""
        until = self.asked_count + count

        async def has_been_asked() -> bool:
            return self.asked_count >= until

        await eventually(has_been_asked)


async def test_nobody_leads_before_the_pause_was_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a cold start of all keeps a pause. Method: the board is away at first, then answers, then is away again;
    the keeper and another replica."""
    monkeypatch.setattr("replica.store.bulletin.POLL_S", 0.01)
    board = BoardHere()
    keeper, other = (
        Bulletin(board.open, name, MarkKeeper(name, MemorySeenFile(), CLOCK, database=True)) for name in ("r1", "r2")
    )
    running = [asyncio.create_task(one.run(lambda _: None)) for one in (keeper, other)]
    try:
        await board.answers(6)
        assert keeper.is_barred()
        assert other.is_barred()
        board.is_away, board.is_away_to_marks = False, True
        await board.answers(6)
        assert keeper.is_barred()  # a mark that the log contradicts would not have been read
        board.is_away_to_marks = False
        await board.answers(6)
        assert (keeper.is_barred(), other.is_barred()) == (False, True)
        board.is_away = True
        await board.answers(6)
        assert (keeper.is_barred(), other.is_barred()) == (False, True)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


class EndsOnce(BoardHere):
    """One whose connection ends at the third question; notes when it is asked, in seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.asked_s: list[float] = []

    async def paused(self) -> Pause | None:
        self.asked_s.append(asyncio.get_running_loop().time())
        self.is_away = len(self.asked_s) == 3
        return await super().paused()


def test_a_connection_that_has_ended_is_opened_anew_at_once() -> None:
    """Goal: a pause is seen within a second also then. Method: the third question meets the end."""
    board = EndsOnce()

    async def story() -> None:
        bulletin = Bulletin(board.open, "r1", MarkKeeper("r1", MemorySeenFile(), CLOCK, database=True))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(bulletin.run(lambda _: None), 3.5)

    run_virtually(story())
    assert board.asked_s == [0, 1, 2, 2, 3]
