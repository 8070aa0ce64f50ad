"""The clocks of a simulated machine."""

from __future__ import annotations

import asyncio

from tests.simulation.plan import START_US


class SimulatedClock:
    """A machine's clocks: boot time runs at its own rate, the wall clock can be set."""

    def __init__(self, rate: float = 1.0, apart_s: float = 0.0) -> None:
        self.ahead_us = 0
        self._start_us = START_US + round(apart_s * 1e6)
        self._rate = rate
        self._loop = asyncio.get_running_loop()

    def boottime_s(self) -> float:
        return self._loop.time() * self._rate

    def wall_us(self) -> int:
        return self._start_us + int(self._loop.time() * 1e6) + self.ahead_us

    async def sleep_s(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
