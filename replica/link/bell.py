"""Wakes everybody who waits for news, as often as there are any."""

from __future__ import annotations

import asyncio


class Bell:
    """Whoever waits hears the next ring, and no older one: look at the news, then wait, with no `await` between."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()

    def ring(self) -> None:
        """Wake all who wait now."""
        self._rung.set()
        self._rung = asyncio.Event()

    async def wait(self, max_s: float) -> None:
        """Return at the next ring, or after `max_s` seconds."""
        rung = self._rung
        try:
            async with asyncio.timeout(max_s):
                await rung.wait()
        except TimeoutError:
            return
