"""Notes that operators and replicas leave for one another in the database, on a connection of its own; or, without a
database, as words in the log.

There are three kinds of note. A pause must be visible to every replica, also to one without the lock. The
reason why an activation ended comes from a replica that lost its lock session and could not record it there, or whose
lock is a lease. A mark that the log contradicts comes from a replica that ends for it (`replica/marks`). A failed read
or write is tried again; nothing here raises.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from datetime import datetime
from typing import Protocol

import msgspec
import structlog

from replica.notary.errors import InvariantBroken, NotaryError
from replica.notary.formats import Formats
from replica.notary.marks import ContradictedMarks
from replica.store.trail_writing import TrailKeeper

log = structlog.get_logger()

POLL_S = 1.0  # how soon a replica notices a pause or its end
ROUND_MAX_S = 3.0
FLUSH_MAX_S = 2.0  # how long a process that ends waits to record its last reasons
UNRECORDED_MAX = 20  # activations whose end is not recorded yet; beyond this the oldest is dropped


NOBODY = "*"  # the keeper of a pause of service: no replica has such a name, so an older release leaves the lock alone


NO_PAUSE_OF_SERVICE = (
    "only a notary whose replicas all serve, with the lock in Postgres, can pause service; here, stop the replicas:"
    " runbook workers"
)


class Pause(msgspec.Struct, frozen=True):
    """Fail-over is paused: only `keeper` asks for the lock. If that is NOBODY, service is paused, and not fail-over."""

    keeper: str
    reason: str
    paused_at: datetime

    @property
    def of_service(self) -> bool:
        """Whether nobody serves, rather than nobody takes over."""
        return self.keeper == NOBODY


class PastActivation(msgspec.Struct, frozen=True):
    """One epoch of the history. `ended_at` and `end_reason` come from its holder, the rest from other replicas."""

    epoch: int
    replica: str
    granted_at: datetime
    succeeded_at: datetime | None
    ended_at: datetime | None
    end_reason: str | None
    found_over_at: datetime | None
    found_over_by: str | None


class Marks(Protocol):
    """The marks of this replica, as far as the database is concerned."""

    async def exchange(self, shared: ContradictedMarks) -> None:
        """Read those of peers, and leave this replica's own."""


class Board(TrailKeeper, ContradictedMarks, Protocol):
    """One connection to the database, never the lock's; or to the log. Every method raises StoreUnavailable and
    StoreMismatch, or LogUnavailable."""

    async def paused(self) -> Pause | None:
        """Whether fail-over or service is paused. There is one note, so it is one of them."""

    async def pause(self, reason: str) -> Pause | None:
        """Let only the holder of the newest epoch ask for the lock; None when no epoch was ever granted, or service is
        paused."""

    async def resume(self) -> Pause | None:
        """End the pause of fail-over; returns the one that was, None if there was none."""

    async def pause_service(self, reason: str) -> Pause | None:
        """Have whoever holds the lock append a barrier that nobody may write under; None while fail-over is paused.
        Raises ConfigError where not every replica can serve."""

    async def resume_service(self) -> Pause | None:
        """End the pause of service; returns the one that was, None if there was none. Raises ConfigError as above."""

    async def history(self, limit: int) -> list[PastActivation]:
        """The newest activations, newest first."""

    async def formats(self) -> Formats:
        """The formats that the next activation writes."""

    async def raise_formats(self, formats: Formats) -> Formats:
        """Raise the formats that the next activation writes; return the result. For the tables' owner. Never lowers."""

    async def end_epoch(self, epoch: int, replica: str, reason: str, age_s: float) -> None:
        """Record the holder's reason why its activation ended, `age_s` seconds ago. Only the first reason counts."""


class Bulletin:
    """Keeps `pause` up to date and records the ends of activations, from `run` until that is cancelled."""

    def __init__(
        self,
        open_board: Callable[[str], AbstractAsyncContextManager[Board]],
        replica: str,
        marks: Marks,
    ) -> None:
        """`open_board` takes the name that the server shows for the connection."""
        self._marks = marks
        self.pause: Pause | None = None
        self._open_board = open_board
        self._replica = replica
        self._read = False
        self._reached = True
        self._unrecorded: deque[tuple[int, str, float]] = deque(maxlen=UNRECORDED_MAX)
        self._left = asyncio.Event()  # an end was noted since the last look
        self._all_recorded = asyncio.Event()

    def is_barred(self) -> bool:
        """Whether this replica must not ask for the lock. True until the notes were read once: what is not known may be
        a pause, or a mark that the log contradicts."""
        return not self._read or (self.pause is not None and self.pause.keeper not in (self._replica, NOBODY))

    @property
    def is_failover_paused(self) -> bool:
        """Whether operators have paused fail-over, as last seen."""
        return self.pause is not None and not self.pause.of_service

    def note_end(self, epoch: int, reason: str) -> None:
        """Note why this replica's activation of that epoch ended just now; `run` records it."""
        self._unrecorded.append((epoch, reason, asyncio.get_running_loop().time()))
        self._all_recorded.clear()
        self._left.set()

    async def flush(self) -> None:
        """Call before the process ends: wait until all noted ends are recorded, at most `FLUSH_MAX_S`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_MAX_S if self._unrecorded else 0.0):
                await self._all_recorded.wait()

    async def run(self, on_looked: Callable[[bool], None]) -> None:
        """Read the pause and record noted ends, once a second. Keeps the last pause while the database is silent.
        `on_looked` gets with each look whether service is paused."""
        while True:
            try:
                async with self._open_board(f"{self._replica}/bulletin") as board:
                    await self._attend(board, on_looked)
            except (NotaryError, InvariantBroken, TimeoutError) as error:  # of any kind: leading continues without it
                worked, self._reached = self._reached, False
                if worked:  # the connection may just have ended: open another one at once
                    log.warning("bulletin_unreachable", detail=str(error) or f"no answer within {ROUND_MAX_S:g} s")
                    continue
            await self._pause()

    async def _attend(self, board: Board, on_looked: Callable[[bool], None]) -> None:
        while True:
            async with asyncio.timeout(ROUND_MAX_S):
                self._note_pause(await board.paused())
                await self._marks.exchange(board)
                on_looked(self.pause is not None and self.pause.of_service)
                self._read = self._reached = True
                while self._unrecorded:
                    epoch, reason, ended_at_s = self._unrecorded[0]
                    age_s = asyncio.get_running_loop().time() - ended_at_s
                    await board.end_epoch(epoch, self._replica, reason, age_s)
                    self._unrecorded.popleft()
                self._all_recorded.set()
            await self._pause()

    async def _pause(self) -> None:
        """Wait until the next look, or until an end is noted."""
        with suppress(TimeoutError):
            async with asyncio.timeout(POLL_S):
                await self._left.wait()
        self._left.clear()

    def _note_pause(self, pause: Pause | None) -> None:
        if pause is None and self.pause is not None and self.pause.of_service:
            log.info("service_resumed")
        elif pause is None and self.pause is not None:
            log.info("failover_resumed")
        elif pause is not None and pause != self.pause and pause.of_service:
            log.warning("service_paused", reason=pause.reason)
        elif pause is not None and pause != self.pause:
            log.info("failover_paused", keeper=pause.keeper, reason=pause.reason)
        self.pause = pause
