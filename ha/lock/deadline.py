"""A deadline for an answer. A process that was suspended still reads an answer that has arrived meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

LOOK_MAX_S = 0.25  # the end of each limit: enough to read what lies in the socket, and for the rest of a transaction


@asynccontextmanager
async def answered_within(limit_s: float) -> AsyncIterator[None]:
    """As `asyncio.timeout`, but the last `LOOK_MAX_S` of the limit begin only when the event loop runs.

    Raises TimeoutError. With `asyncio.timeout`, a pause that ends at or after the deadline would lose the session
    although the answer has arrived: an event loop that runs again handles its timers before its sockets. The lease
    still counts from the moment of sending.
    """
    loop = asyncio.get_running_loop()
    look_s = min(LOOK_MAX_S, limit_s / 2)
    async with asyncio.timeout(None) as deadline:
        timer = loop.call_later(limit_s - look_s, lambda: deadline.reschedule(loop.time() + look_s))
        try:
            yield
        finally:
            timer.cancel()
