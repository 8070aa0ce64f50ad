"""A lock whose waiters are served caller by caller, in turns: who waits with many calls delays only its own."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager


class Turns:
    """Held by one call at a time."""

    def __init__(self) -> None:
        self._is_taken = False
        self._waiting: dict[Hashable, deque[asyncio.Future[None]]] = {}  # the next caller first

    @asynccontextmanager
    async def turn(self, holder: Hashable) -> AsyncIterator[None]:
        """Wait for this caller's turn, and have it."""
        if self._is_taken:
            await self._wait(holder)
        self._is_taken = True
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, holder: Hashable) -> None:
        mine = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(holder, deque()).append(mine)
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():
                self._pass_on()  # it was given to us, and we are gone
            else:
                self._forget(holder, mine)
            raise

    def _pass_on(self) -> None:
        """The lock stays taken while it goes to the next one: nobody who comes now may pass those who wait."""
        self._is_taken = bool(self._waiting)
        if not self._waiting:
            return
        holder, waiting = next(iter(self._waiting.items()))
        waiting.popleft().set_result(None)
        del self._waiting[holder]
        if waiting:
            self._waiting[holder] = waiting  # behind the others

    def _forget(self, holder: Hashable, mine: asyncio.Future[None]) -> None:
        waiting = self._waiting[holder]
        waiting.remove(mine)
        if not waiting:
            del self._waiting[holder]
