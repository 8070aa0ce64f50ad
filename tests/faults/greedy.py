"""One caller that takes all it gets, and a second one from another address, who must be served meanwhile."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from tests.promises import promised

GREEDY, OTHER = "127.0.0.2", "127.0.0.3"
SERVED_MAX_S = 10.0
OPENED_TOGETHER = 64
ABOUT = b"GET /v1/notary HTTP/1.1\r\nHost: localhost\r\n\r\n"
FOLLOW = b"GET /v1/completions?follow=true&after=%d HTTP/1.1\r\nHost: localhost\r\n\r\n"
NOTHING = b"GET /v1/completions?after=0&limit=1000&party=O%3DNobody HTTP/1.1\r\nHost: localhost\r\n\r\n"
SUBMISSIONS = (
    b"GET /v1/submissions/stream HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    b"Sec-WebSocket-Protocol: notary.v1\r\n\r\n"
)
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True, slots=True)
class Place:
    """Where callers connect: a replica's API, or the endpoint."""

    host: str
    port: int

    async def connect(self, source: str) -> Stream:
        """Raises ConnectionError when it is not taken."""
        return await asyncio.open_connection(self.host, self.port, local_addr=(source, 0))

    async def status(self, source: str, raw: bytes) -> int:
        """The status of the answer on a connection of its own; 0 when it is closed without one."""
        stream = await self.opened(source, raw)
        if stream is None:
            return 0
        try:
            line = await stream[0].readline()
        except ConnectionError:
            return 0
        finally:
            stream[1].transport.abort()
        return int(line.split()[1]) if line else 0

    async def opened(self, source: str, raw: bytes) -> Stream | None:
        """A connection on which something was asked."""
        with suppress(ConnectionError):
            stream = await self.connect(source)
            stream[1].write(raw)
            return stream
        return None


@asynccontextmanager
async def held(place: Place, count: int, raw: bytes) -> AsyncIterator[Counter[int]]:
    """So many connections of the greedy caller, each with one request (or none); how many were answered with what."""
    streams: list[Stream] = []
    statuses: Counter[int] = Counter()

    async def take() -> None:
        stream = await place.opened(GREEDY, raw)
        if stream is None:
            statuses[0] += 1
            return
        streams.append(stream)
        if raw:
            with suppress(ConnectionError):
                line = await stream[0].readline()
                statuses[int(line.split()[1]) if line else 0] += 1

    try:
        for first in range(0, count, OPENED_TOGETHER):
            await asyncio.gather(*(take() for _ in range(first, min(count, first + OPENED_TOGETHER))))
        yield statuses
    finally:
        for _, writer in streams:
            writer.transport.abort()


@asynccontextmanager
async def repeated(place: Place, callers: int, raw: bytes) -> AsyncIterator[Counter[int]]:
    """The greedy caller asks the same again and again, on so many connections at a time."""
    statuses: Counter[int] = Counter()

    async def go_on() -> None:
        while True:
            statuses[await place.status(GREEDY, raw)] += 1

    tasks = [asyncio.create_task(go_on()) for _ in range(callers)]
    try:
        yield statuses
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def serves_another(place: Place, raw: bytes, status: int, times: int, note: Callable[[str], None]) -> None:
    """The second caller gets this status each time, within a bound. Raises PromiseBroken."""
    loop, slowest_s = asyncio.get_running_loop(), 0.0
    for _ in range(times):
        began_s = loop.time()
        try:
            async with asyncio.timeout(SERVED_MAX_S):
                got: int | str = await place.status(OTHER, raw)
        except TimeoutError:
            got = f"nothing within {SERVED_MAX_S:g} s"
        promised(got == status, f"a second caller at port {place.port} got {got} for {raw[:60]!r}")
        slowest_s = max(slowest_s, loop.time() - began_s)
    note(f"a second caller was served {times} times, the slowest in {slowest_s:.2f} s")
