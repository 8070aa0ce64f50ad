"""Time, as an argument. Leases are judged on a clock that runs on while the machine is suspended."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """What the room needs of time."""

    def boottime_s(self) -> float:
        """Seconds since boot, suspension included. Never goes back, and nobody can set it."""

    def wall_us(self) -> int:
        """Microseconds since 1970 UTC. May jump; used only to compare with the database's clock."""

    async def sleep_s(self, delay_s: float) -> None:
        """Wait at least `delay_s` seconds of the event loop's time."""


class SystemClock:
    """The machine's clocks. CLOCK_MONOTONIC would stop with a suspended machine and make an old lease look young."""

    def boottime_s(self) -> float:
        """CLOCK_BOOTTIME."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def wall_us(self) -> int:
        """CLOCK_REALTIME."""
        return time.time_ns() // 1_000

    async def sleep_s(self, delay_s: float) -> None:
        """asyncio.sleep."""
        await asyncio.sleep(delay_s)
