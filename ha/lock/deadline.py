"""A deadline for an answer that lets a process which stood still read what came in the meantime."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

LATE_S = 0.05  # a timer that fires later than this was not served: the process, or its event loop, stood still
LOOK_S = 0.05  # then so long for what lies in the socket; the lease is judged by the moment of sending all the same


@asynccontextmanager
async def answered_within(limit_s: float) -> AsyncIterator[None]:
    """As `asyncio.timeout`, but whoever slept through the deadline has one short look before it counts.

    Raises TimeoutError. Without the look every pause of `limit_s` loses the session although the answer has arrived: an
    event loop that runs again sees the deadline first.
    """
    loop = asyncio.get_running_loop()
    due_s = loop.time() + limit_s

    def over() -> None:
        now_s = loop.time()
        deadline.reschedule(now_s + LOOK_S if now_s - due_s > LATE_S else now_s)

    async with asyncio.timeout(None) as deadline:
        timer = loop.call_at(due_s, over)
        try:
            yield
        finally:
            timer.cancel()
