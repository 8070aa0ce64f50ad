"""A TCP proxy that treats connections as a bad network does: it holds them in silence, resets them, or delays them.

`python -m tests.faults.lab.proxy` reads orders from standard input, a JSON object a line, and answers each with a line
once it is carried out. It is a process of its own, so that a test that blocks does not slow down what it tests, and it
ends with its input.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import struct
import sys
from collections.abc import Iterable

import msgspec
import uvloop

from replica.log.raft.links import close_server

CHUNK_BYTES = 65_536
BACKLOG = 1_024
CONNECT_MAX_S = 5.0
DONE = b"done\n"
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends a reset

LinkName = tuple[str, str]  # the client's machine, the server's


class Door(msgspec.Struct, frozen=True, tag=True):
    """Order: listen for one machine's clients of one server. From `source` it connects to the same port of `target`."""

    client: str
    server: str
    listen: str
    source: str
    target: str
    port: int


class Silence(msgspec.Struct, frozen=True, tag=True):
    """Order: nothing passes in either direction, ends of streams included; new connections are accepted in silence."""

    links: list[LinkName]


class Delay(msgspec.Struct, frozen=True, tag=True):
    """Order: pass on all data with this delay."""

    links: list[LinkName]
    delay_s: float


class Reset(msgspec.Struct, frozen=True, tag=True):
    """Order: end all open connections, by a reset to both sides."""

    links: list[LinkName]


class Heal(msgspec.Struct, frozen=True, tag=True):
    """Order: everything passes again, held data first."""

    links: list[LinkName]


Order = Door | Silence | Delay | Reset | Heal


class Link:
    """All connections of one machine's clients to another machine's servers, whatever their ports."""

    def __init__(self) -> None:
        self._passes = asyncio.Event()
        self._passes.set()
        self._delay_s = 0.0
        self._connections: set[asyncio.Task[None]] = set()

    def silence(self) -> None:
        """Hold everything, until `heal`."""
        self._passes.clear()

    def delay(self, delay_s: float) -> None:
        """Delay everything by this much, until `heal`."""
        self._delay_s = delay_s

    def heal(self) -> None:
        """Pass everything again."""
        self._delay_s = 0.0
        self._passes.set()

    async def reset(self) -> None:
        """End all connections; returns once both sides of each have been sent a reset."""
        connections = list(self._connections)
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    async def listen(self, door: Door) -> asyncio.Server:
        """Take connections at a door of this link. Raises OSError."""

        def taken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = asyncio.create_task(self._serve(door, reader, writer))
            self._connections.add(connection)
            connection.add_done_callback(self._connections.discard)

        return await asyncio.start_server(taken, door.listen, door.port, limit=CHUNK_BYTES, backlog=BACKLOG)

    async def _serve(self, door: Door, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection to its end. A missing server looks to the client like one that resets."""
        writers, whole = [writer], False
        try:
            await self._passes.wait()
            async with asyncio.timeout(CONNECT_MAX_S):
                far_reader, far_writer = await asyncio.open_connection(
                    door.target, door.port, local_addr=(door.source, 0), limit=CHUNK_BYTES
                )
            writers.append(far_writer)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(reader, far_writer))
                group.create_task(self._pump(far_reader, writer))
            whole = True
        except* OSError:  # a time-out as well
            await self._passes.wait()
        finally:
            for one in writers:
                one.close() if whole else _reset(one)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One direction: data and close. Held data is bounded; beyond the bound nothing is read."""
        while data := await reader.read(CHUNK_BYTES):
            await self._held()
            writer.write(data)
            await writer.drain()
        await self._held()
        if not writer.is_closing():
            writer.write_eof()

    async def _held(self) -> None:
        if self._delay_s:
            await asyncio.sleep(self._delay_s)
        await self._passes.wait()


class FaultProxy:
    """All links by name. Carries out orders one after the other."""

    def __init__(self) -> None:
        self._links: dict[LinkName, Link] = {}
        self._servers: list[asyncio.Server] = []

    async def carry_out(self, order: Order) -> None:
        """Returns once it has taken effect. Raises OSError for a door that cannot be listened at, KeyError for a link
        without a door."""
        match order:
            case Door():
                link = self._links.setdefault((order.client, order.server), Link())
                self._servers.append(await link.listen(order))
            case Silence(links):
                for link in self._named(links):
                    link.silence()
            case Delay(links, delay_s):
                for link in self._named(links):
                    link.delay(delay_s)
            case Reset(links):
                await asyncio.gather(*(link.reset() for link in self._named(links)))
            case Heal(links):
                for link in self._named(links):
                    link.heal()

    async def close(self) -> None:
        """End everything."""
        for server in self._servers:
            await close_server(server)
        await asyncio.gather(*(link.reset() for link in self._links.values()))

    def _named(self, names: Iterable[LinkName]) -> list[Link]:
        return [self._links[name] for name in names]


def _reset(writer: asyncio.StreamWriter) -> None:
    if not writer.is_closing():
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()


async def run() -> None:
    """Carry out the orders on standard input until it ends."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    decoder, proxy = msgspec.json.Decoder(Order), FaultProxy()
    try:
        while line := await reader.readline():
            answer = DONE
            try:
                await proxy.carry_out(decoder.decode(line))
            except (OSError, KeyError, msgspec.DecodeError) as error:
                answer = f"{error!r}\n".encode()
            sys.stdout.buffer.write(answer)
            sys.stdout.buffer.flush()
    finally:
        await proxy.close()


def main() -> int:
    """Be the proxy."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each connection has two, and a scenario thousands
    uvloop.run(run())
    return 0


if __name__ == "__main__":
    sys.exit(main())
