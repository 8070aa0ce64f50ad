"""What operators and replicas leave for one another in the database, on a connection of its own.

A pause of fail-over, which every replica must see while it holds no lock; and the reason why an activation ended, for a
replica that lost its lock session and could not say it there. Nothing here is written that the notary's answers rest
on, so it need not be the lock's connection. What cannot be read or written now is tried again; nothing here fails.
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

log = structlog.get_logger()

POLL_S = 1.0  # how soon a replica follows a pause or its end
ROUND_MAX_S = 3.0
FLUSH_MAX_S = 2.0  # how long a process that ends waits for its last words to be taken
UNTOLD_MAX = 20  # activations whose end waits to be told; the oldest is dropped


class Pause(msgspec.Struct, frozen=True):
    """Fail-over is paused: only `keeper` asks for the lock."""

    keeper: str
    reason: str
    paused_at: datetime


class PastActivation(msgspec.Struct, frozen=True):
    """One epoch of the history. `ended_at` and `end_reason` are its holder's word, the rest is what others saw."""

    epoch: int
    replica: str
    granted_at: datetime
    succeeded_at: datetime | None
    ended_at: datetime | None
    end_reason: str | None
    found_over_at: datetime | None
    found_over_by: str | None


class Board(Protocol):
    """One connection to the database, never the lock's. Every method raises StoreUnavailable and StoreMismatch."""

    async def paused(self) -> Pause | None:
        """Whether fail-over is paused."""

    async def pause(self, reason: str) -> Pause | None:
        """Let nobody but the holder of the newest epoch ask for the lock; None when no epoch was ever granted."""

    async def resume(self) -> Pause | None:
        """End the pause; returns the one that was, None if there was none."""

    async def history(self, limit: int) -> list[PastActivation]:
        """The newest activations, newest first."""

    async def formats(self) -> Formats:
        """What the next activation writes."""

    async def raise_formats(self, formats: Formats) -> Formats:
        """Raise what the next activation writes, as the tables' owner; returns what it is now. Nothing is lowered."""

    async def end_epoch(self, epoch: int, replica: str, reason: str, age_s: float) -> None:
        """The holder's own word on why its activation ended, so many seconds ago. Only the first word counts."""


class Bulletin:
    """Keeps `pause` up to date and delivers what was left to be told, from `run` until that is cancelled."""

    def __init__(self, open_board: Callable[[str], AbstractAsyncContextManager[Board]], replica: str) -> None:
        """`open_board` takes the name that the connection goes by at the server."""
        self.pause: Pause | None = None
        self._open_board = open_board
        self._replica = replica
        self._asked = False
        self._reached = True
        self._untold: deque[tuple[int, str, float]] = deque(maxlen=UNTOLD_MAX)
        self._left = asyncio.Event()  # something was left to be told since the last look
        self._all_told = asyncio.Event()

    def is_barred(self) -> bool:
        """Whether this replica must leave the lock alone; also until the database was asked once, answer or not."""
        return not self._asked or (self.pause is not None and self.pause.keeper != self._replica)

    def tell(self, epoch: int, reason: str) -> None:
        """Leave word on why this replica's activation of that epoch ended just now."""
        self._untold.append((epoch, reason, asyncio.get_running_loop().time()))
        self._all_told.clear()
        self._left.set()

    async def flush(self) -> None:
        """Before the process ends: wait for what is left to be told, `FLUSH_MAX_S` at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_MAX_S if self._untold else 0.0):
                await self._all_told.wait()

    async def run(self) -> None:
        """Look and tell once a second. Keeps what was last seen while the database does not answer."""
        while True:
            try:
                async with self._open_board(f"{self._replica}/bulletin") as board:
                    await self._attend(board)
            except (NotaryError, InvariantBroken, TimeoutError) as error:  # of any kind: leading goes on without
                if self._reached:
                    log.warning("bulletin_unreachable", detail=str(error) or f"no answer within {ROUND_MAX_S:g} s")
                self._asked, self._reached = True, False
            await self._pause()

    async def _attend(self, board: Board) -> None:
        while True:
            async with asyncio.timeout(ROUND_MAX_S):
                self._note_pause(await board.paused())
                self._asked = self._reached = True
                while self._untold:
                    epoch, reason, ended_at_s = self._untold[0]
                    age_s = asyncio.get_running_loop().time() - ended_at_s
                    await board.end_epoch(epoch, self._replica, reason, age_s)
                    self._untold.popleft()
                self._all_told.set()
            await self._pause()

    async def _pause(self) -> None:
        """Until the next look, which something to tell brings forward."""
        with suppress(TimeoutError):
            async with asyncio.timeout(POLL_S):
                await self._left.wait()
        self._left.clear()

    def _note_pause(self, pause: Pause | None) -> None:
        if pause is None and self.pause is not None:
            log.info("failover_resumed")
        elif pause is not None and pause != self.pause:
            log.info("failover_paused", keeper=pause.keeper, reason=pause.reason)
        self.pause = pause
