"""`python -m tests.bench.generator SETTINGS`: an open loop over HTTP, in a process of its own; prints what it saw.

Requests are sent when they are due, whether or not earlier ones have been answered. A latency begins when its request
was due. So a pause is felt by every request that would have come in it, whether it was the service or the generator
that was late; how late the generator was itself is reported beside (`late_ms`). Each body is a line of a file, and is
sent once.

Connections are kept alive, and more are opened when all are busy, up to a bound; then requests wait for one, which
counts. It is lean, because it shares the processors with what it measures: one timer of the kernel (asyncio's have
steps of a millisecond), no HTTP library, no allocation that the collector would have to look at.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import resource
import sys
from collections import deque
from pathlib import Path
from random import Random
from time import CLOCK_MONOTONIC, clock_gettime
from typing import cast

import msgspec
import uvloop

from tests.bench.arrivals import poisson_arrivals, quantiles_ms
from tests.bench.http_message import is_whole

OPENED_BEFOREHAND = 64
ANSWERED_MAX_S = 30.0  # after the last request was due
LEAD_S = 0.2
_TIMER_ABSOLUTE = 1
_libc = ctypes.CDLL(None, use_errno=True)


class GeneratorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What to send, and when. The body of the first request begins at `from_byte` of the file."""

    host: str
    port: int
    path: str
    bodies: str
    from_byte: int
    per_second: float
    duration_s: float
    seed: int
    connections_max: int = 1_000


class OpenLoopResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of the requests. `latency_ms`: of those that succeeded, by quantile; of none, empty."""

    due: int
    succeeded: int
    failed: dict[str, int]  # by status; "0": the connection ended
    latency_ms: dict[str, float]
    late_ms: dict[str, float]  # from when a request was due to when the generator came to it
    succeeded_per_s: float  # while requests came, and until the last one was answered
    cpu_s: float  # of the generator


class _Timespec(ctypes.Structure):
    _fields_ = [("s", ctypes.c_long), ("ns", ctypes.c_long)]


class _Interval(ctypes.Structure):
    _fields_ = [("every", _Timespec), ("first", _Timespec)]


class _Alarm:
    """A timer of the kernel that wakes the loop within some microseconds of a moment of the monotonic clock."""

    def __init__(self) -> None:
        self.fd: int = _libc.timerfd_create(CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._when = _Interval()

    def set(self, at_s: float) -> None:
        """Wake once, at that time; at once if it has passed."""
        self._when.first.s, self._when.first.ns = divmod(max(1, round(at_s * 1e9)), 1_000_000_000)
        if _libc.timerfd_settime(self.fd, _TIMER_ABSOLUTE, ctypes.byref(self._when), None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def clear(self) -> None:
        """Take note that it rang."""
        os.read(self.fd, 8)

    def close(self) -> None:
        """Never ring again."""
        os.close(self.fd)


class _Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self, loop: OpenLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._due_s: float | None = None
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance

    def send(self, request: bytes, due_s: float) -> None:
        """Send a request that was due then."""
        assert self._transport is not None
        self._due_s = due_s
        self._transport.write(request)

    def close(self) -> None:
        """End it."""
        assert self._transport is not None
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        received = self._received + data if self._received else data
        if not is_whole(received):
            self._received = received
            return
        self._received = b""
        due_s, self._due_s = self._due_s, None
        assert due_s is not None
        self._loop.note(received[9:12].decode(), due_s)
        self._loop.is_free(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._loop.is_gone(self)
        if self._due_s is not None:
            self._loop.note("0", self._due_s)


class OpenLoop:
    """Sends everything when it is due, and waits for the answers."""

    def __init__(self, settings: GeneratorSettings) -> None:
        self._settings = settings
        self._head = (
            f"POST {settings.path} HTTP/1.1\r\nHost: notary\r\nContent-Type: application/json\r\nContent-Length: "
        ).encode()
        self._arrivals = deque(poisson_arrivals(settings.per_second, settings.duration_s, Random(settings.seed)))
        self._due = len(self._arrivals)
        self._waiting: deque[float] = deque()
        self._free: list[_Connection] = []
        self._connections: set[_Connection] = set()
        self._began_s = 0.0
        self._statuses: dict[str, int] = {}
        self._latencies_s: list[float] = []
        self._late_s: list[float] = []
        self._all_answered = asyncio.Event()
        self._opening: set[asyncio.Task[None]] = set()

    async def run(self) -> OpenLoopResult:
        """Everything, once."""
        try:
            with Path(self._settings.bodies).open("rb", buffering=1 << 20) as self._lines:
                self._lines.seek(self._settings.from_byte)
                for _ in range(min(OPENED_BEFOREHAND, self._settings.connections_max)):
                    await self._open()
                await self._send_all()
        finally:
            for connection in self._connections:
                connection.close()
            await asyncio.sleep(0)
        took_s = max(self._settings.duration_s, clock_gettime(CLOCK_MONOTONIC) - self._began_s)
        succeeded = len(self._latencies_s)
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return OpenLoopResult(
            due=self._due,
            succeeded=succeeded,
            failed={status: count for status, count in self._statuses.items() if status != "200"},
            latency_ms=quantiles_ms(self._latencies_s) if succeeded else {},
            late_ms=quantiles_ms(self._late_s),
            succeeded_per_s=succeeded / took_s,
            cpu_s=usage.ru_utime + usage.ru_stime,
        )

    async def _send_all(self) -> None:
        loop, alarm = asyncio.get_running_loop(), _Alarm()
        self._began_s = clock_gettime(CLOCK_MONOTONIC) + LEAD_S

        def send_due() -> None:
            alarm.clear()
            self._come_in(clock_gettime(CLOCK_MONOTONIC) - self._began_s)
            if self._arrivals:
                alarm.set(self._began_s + self._arrivals[0])

        loop.add_reader(alarm.fd, send_due)
        alarm.set(self._began_s)
        try:
            async with asyncio.timeout(LEAD_S + self._settings.duration_s + ANSWERED_MAX_S):
                await self._all_answered.wait()
        finally:
            loop.remove_reader(alarm.fd)
            alarm.close()

    def _come_in(self, now_s: float) -> None:
        """Take all requests that are due."""
        arrivals = self._arrivals
        while arrivals and arrivals[0] <= now_s:
            due_s = arrivals.popleft()
            self._late_s.append(now_s - due_s)
            if self._free:
                self._send(self._free.pop(), due_s)
                continue
            self._waiting.append(due_s)
            self._open_one_more()

    def _send(self, connection: _Connection, due_s: float) -> None:
        body = self._lines.readline()[:-1]
        if not body:
            raise RuntimeError("fewer bodies than requests")
        connection.send(b"%b%d\r\n\r\n%b" % (self._head, len(body), body), due_s)

    def _open_one_more(self) -> None:
        if len(self._connections) + len(self._opening) < self._settings.connections_max:
            task = asyncio.create_task(self._open())
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self) -> None:
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: _Connection(self), self._settings.host, self._settings.port
        )
        self._connections.add(connection)
        self.is_free(connection)

    def is_free(self, connection: _Connection) -> None:
        """A connection can take a request."""
        if self._waiting:
            self._send(connection, self._waiting.popleft())
        else:
            self._free.append(connection)

    def is_gone(self, connection: _Connection) -> None:
        """A connection ended; whoever waits gets another one."""
        self._connections.discard(connection)
        if connection in self._free:
            self._free.remove(connection)
        if self._waiting:
            self._open_one_more()

    def note(self, status: str, due_s: float) -> None:
        """A request that was due then has its answer."""
        if status == "200":
            self._latencies_s.append(clock_gettime(CLOCK_MONOTONIC) - self._began_s - due_s)
        self._statuses[status] = self._statuses.get(status, 0) + 1
        if sum(self._statuses.values()) == self._due:
            self._all_answered.set()


def main() -> None:
    """Run as the settings in the first argument say, and print the result."""
    settings = msgspec.json.decode(sys.argv[1], type=GeneratorSettings)
    gc.disable()

    async def run() -> OpenLoopResult:
        return await OpenLoop(settings).run()

    sys.stdout.buffer.write(msgspec.json.encode(uvloop.run(run())))


if __name__ == "__main__":
    main()
