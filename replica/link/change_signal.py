"""Wakes all who wait for a change, at each change."""

from __future__ import annotations

import asyncio


class ChangeSignal:
    """A waiter wakes at the next change, not at an earlier one. So look first, then wait, with no `await` between."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def notify(self) -> None:
        """Wake all who wait now."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self, max_s: float) -> None:
        """Return at the next change, or after `max_s` seconds."""
        changed = self._changed
        try:
            async with asyncio.timeout(max_s):
                await changed.wait()
        except TimeoutError:
            return
