"""A deadline for an answer that lets a process which stood still read what came in the meantime."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

LOOK_MAX_S = 0.25  # the end of each limit: enough to read what lies in the socket, and for the rest of a transaction


@asynccontextmanager
async def answered_within(limit_s: float) -> AsyncIterator[None]:
    """As `asyncio.timeout`, but the end of the limit is counted by an event loop that runs.

    Raises TimeoutError. Otherwise a pause that ends at the deadline, or after it, loses the session although the
    answer has arrived: an event loop that runs again sees its timers before its sockets. The lease is judged by the
    moment of sending all the same.
    """
    loop = asyncio.get_running_loop()
    look_s = min(LOOK_MAX_S, limit_s / 2)
    async with asyncio.timeout(None) as deadline:
        timer = loop.call_later(limit_s - look_s, lambda: deadline.reschedule(loop.time() + look_s))
        try:
            yield
        finally:
            timer.cancel()
