"""A forwarder of TCP connections in HAProxy's place, for a machine that has none. For development only.

As HAProxy does, it sends each connection to a replica that calls itself active, of several to the one with the fewest,
and cuts those to a replica that does not any more. It brings availability, never safety: a replica that it wrongly
believes active refuses by itself. It runs in the supervisor's own process, and ends with it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from haproxy.render import Endpoint, ReplicaAddress
from haproxy.runtime import ServerState
from replica.local.process import ServerFailed
from replica.log.raft.links import close_server
from replica.notary.loopback import socket_host
from replica.notary.tasks import cancelled

CHECK_EVERY_S = 0.05
CHECK_MAX_S = 0.5
LATE_MAX = 1  # checks in a row that an active replica may leave without an answer, as on a busy machine
CONNECT_MAX_S = 2.0
CONNECTIONS_MAX = 2_000  # past it, a new one is cut at once
CHUNK_BYTES = 65_536
_QUESTION = b"GET /health/active HTTP/1.1\r\nHost: notary\r\nConnection: close\r\n\r\n"


def chosen(active: Iterable[str], connected: Iterable[str]) -> str | None:
    """The replica that gets a new connection: of those that are active, the one that has the fewest.

    `connected`: the replica of each connection.
    """
    count = Counter(connected)
    return min(sorted(active), key=lambda name: count[name], default=None)


class Forwarder:
    """Used as HaproxyServer is: `start`, `keep`, `servers`, `stop`."""

    def __init__(self, bind: Endpoint, replicas: Sequence[ReplicaAddress]) -> None:
        self._bind = bind
        self._replicas = {replica.name: replica for replica in replicas}
        self._active: set[str] = set()  # by the newest checks
        self._connections: dict[asyncio.Task[None], str] = {}
        self._server: asyncio.Server | None = None
        self._checking: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Listen and begin to check. Raises ServerFailed."""
        host = None if self._bind.host == "*" else socket_host(self._bind.host)
        try:
            self._server = await asyncio.start_server(self._take, host, self._bind.port)
        except OSError as error:
            raise ServerFailed(f"the endpoint {self._bind.host}:{self._bind.port} is not free: {error}") from None
        self._checking = [
            asyncio.create_task(self._check_for_ever(replica), name=f"forwarder {replica.name}")
            for replica in self._replicas.values()
        ]

    async def stop(self) -> None:
        """Close every connection and end. May be repeated."""
        if self._server is not None:
            await close_server(self._server)
        tasks = [*self._connections, *self._checking]
        await cancelled(*tasks)

    async def keep(self, say: Callable[[str, str], None]) -> None:
        """It has no process of its own that could end: wait until cancelled."""
        await asyncio.Event().wait()

    async def servers(self) -> dict[str, ServerState]:
        """How it sees each replica now."""
        return {name: self._state(name) for name in self._replicas}

    def _state(self, name: str) -> ServerState:
        up = name in self._active
        open_now = sum(of == name for of in self._connections.values())
        return ServerState(name, up, False, "L7OK" if up else "L7STS", open_now, 0, 0, 0)

    async def _check_for_ever(self, replica: ReplicaAddress) -> None:
        """Each replica by itself: one that does not answer must not delay what the others say."""
        late = 0
        while True:
            active = await _says_active(replica)
            late = late + 1 if active is None else 0
            if active:
                self._active.add(replica.name)
            elif active is not None or late > LATE_MAX:
                self._active.discard(replica.name)
            self._cut_from_passives()
            await asyncio.sleep(CHECK_EVERY_S)

    def _cut_from_passives(self) -> None:
        for task, name in self._connections.items():
            if name not in self._active:  # it would go on to get refusals from a replica that was demoted
                task.cancel()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task, name = asyncio.current_task(), chosen(self._active, self._connections.values())
        if name is None or task is None or len(self._connections) >= CONNECTIONS_MAX:
            writer.transport.abort()
            return
        self._connections[task] = name
        try:
            await _forward(reader, writer, self._replicas[name])
            writer.close()
        except (OSError, TimeoutError, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            del self._connections[task]


async def _says_active(replica: ReplicaAddress) -> bool | None:
    """Whether it answers 200 to the question that HAProxy asks; None: no answer in time, though it may listen."""
    try:
        async with asyncio.timeout(CHECK_MAX_S):
            reader, writer = await asyncio.open_connection(socket_host(replica.host), replica.health_port)
            try:
                writer.write(_QUESTION)
                words = (await reader.readline()).split()
            finally:
                writer.transport.abort()
    except TimeoutError:
        return None
    except (OSError, ValueError):
        return False
    return len(words) > 1 and words[1] == b"200"


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, replica: ReplicaAddress) -> None:
    """Pass on what either side sends, until both have ended. Raises OSError and TimeoutError."""
    async with asyncio.timeout(CONNECT_MAX_S):
        its_reader, its_writer = await asyncio.open_connection(socket_host(replica.host), replica.api_port)
    ways = [asyncio.create_task(_pass_on(reader, its_writer)), asyncio.create_task(_pass_on(its_reader, writer))]
    try:
        done, _ = await asyncio.wait(ways, return_when=asyncio.FIRST_EXCEPTION)
        for way in done:
            way.result()
        its_writer.close()
    finally:
        await cancelled(*ways)
        if not its_writer.is_closing():
            its_writer.transport.abort()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(CHUNK_BYTES):
        writer.write(chunk)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
