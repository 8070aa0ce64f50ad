"""Watches whether the log returns what was appended. It counts ticks, so that time in suspension does not count."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from ha.ending import Cause, Ending
from replica.active.parts import Parts

_TICK_S = 0.1
_SILENT_TICKS_MAX = 5  # beyond the follower's own patience: one look at a thawed process proves nothing


class StallWatchdog:
    """Steps down when our oldest record does not read back, or the log does not answer at all, for too long."""

    def __init__(self, parts: Parts, oldest_unread: Callable[[], int | None], is_connected: Callable[[], bool]) -> None:
        """`oldest_unread`: sequence number of our oldest record that was not read back. `is_connected`: whether the
        log's writer has a connection."""
        self._is_connected = is_connected
        self._parts = parts
        self._oldest_unread = oldest_unread
        self._ending = asyncio.Event()

    def stop(self) -> None:
        """Let `run` end."""
        self._ending.set()

    async def run(self) -> None:
        """Watch until stopped, or until there is a reason to step down."""
        oldest, ticks, silent_ticks, apart_ticks = None, 0, 0, 0
        stalled_s = self._parts.settings.log_stall_max_s
        while not await self._stops_within(_TICK_S):
            first = self._oldest_unread()
            ticks = ticks + 1 if first is not None and first == oldest else 0
            oldest = first
            silent_ticks = 0 if self._parts.follower.reaches_log() else silent_ticks + 1
            apart_ticks = 0 if self._is_connected() else apart_ticks + 1
            if apart_ticks * _TICK_S >= stalled_s:
                self._step_down(f"the log's writer had no connection for {stalled_s} s")
                return
            if ticks * _TICK_S >= stalled_s:
                self._step_down(f"record {oldest} did not read back for {stalled_s} s")
                return
            if silent_ticks >= _SILENT_TICKS_MAX:
                self._step_down("the log does not answer")
                return

    def _step_down(self, reason: str) -> None:
        self._parts.step_down(Ending(Cause.LOG_STALLED, reason))

    async def _stops_within(self, delay_s: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await self._ending.wait()
        return self._ending.is_set()
