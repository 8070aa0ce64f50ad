"""Waiting for something that another process does, bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

WAIT_MAX_S = 10.0
LOOK_EVERY_S = 0.02


async def eventually(happened: Callable[[], Awaitable[bool]], timeout_s: float = WAIT_MAX_S) -> None:
    """Return once `happened` is True; raises TimeoutError after `timeout_s`."""
    async with asyncio.timeout(timeout_s):
        while not await happened():  # an asyncio.Event cannot be set from there
            await asyncio.sleep(LOOK_EVERY_S)
