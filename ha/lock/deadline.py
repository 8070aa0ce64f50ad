"""A deadline for an answer that lets a process which stood still read what came in the meantime."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

LOOK_S = 0.05  # the end of each limit: enough to read what lies in the socket


@asynccontextmanager
async def answered_within(limit_s: float) -> AsyncIterator[None]:
    """As `asyncio.timeout`, but the last `LOOK_S` of the limit are counted by an event loop that runs.

    Raises TimeoutError. Otherwise a pause that ends at the deadline, or behind it, loses the session although the
    answer has arrived: an event loop that runs again sees its timers before its sockets. The lease is judged by the
    moment of sending all the same.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(None) as deadline:
        look_at_s = loop.time() + max(0.0, limit_s - LOOK_S)
        timer = loop.call_at(look_at_s, lambda: deadline.reschedule(loop.time() + LOOK_S))
        try:
            yield
        finally:
            timer.cancel()
