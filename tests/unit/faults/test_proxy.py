"""The fault proxy: what passes, what is held, what is reset, what is late."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic

import pytest

from replica.local.ports import PortReservation
from replica.log.raft.links import close_server
from tests.faults.lab.proxy import Delay, Door, FaultProxy, Heal, Reset, Silence

LINK = ("client", "server")
OTHER = ("other", "server")
SILENT_S = 0.1  # long enough for an answer to come that must not
ANSWER_MAX_S = 10.0

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class World:
    """An echo server, and the proxy with two clients' links to it."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.proxy = FaultProxy()
        self.ended = 0  # connections that the server saw the end of
        self._writers: list[asyncio.StreamWriter] = []

    async def echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(100):
                writer.write(data)
        except ConnectionResetError:
            pass
        finally:
            self.ended += 1
            await ended(writer)

    async def connected(self, listen: str = "127.0.0.2", port: int | None = None) -> Streams:
        reader, writer = await asyncio.open_connection(listen, port or self.port)
        self._writers.append(writer)
        return reader, writer

    async def close(self) -> None:
        for writer in self._writers:
            await ended(writer)
        await self.proxy.close()

    async def order(self, *orders: Door | Silence | Delay | Reset | Heal) -> None:
        for order in orders:
            await self.proxy.carry_out(order)


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    with PortReservation() as ports:
        made = World(ports.take())
        server = await asyncio.start_server(made.echo, "127.0.0.1", made.port)
        for (client, name), listen in ((LINK, "127.0.0.2"), (OTHER, "127.0.0.3")):
            await made.order(Door(client, name, listen, "127.0.0.1", "127.0.0.1", made.port))
        try:
            yield made
        finally:
            await made.close()
            await close_server(server)


async def ended(writer: asyncio.StreamWriter) -> None:
    """A connection is closed, whatever it met before."""
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def asked(streams: Streams, word: bytes) -> None:
    """The server's echo comes."""
    reader, writer = streams
    writer.write(word)
    async with asyncio.timeout(ANSWER_MAX_S):
        assert await reader.readexactly(len(word)) == word


async def hears_nothing(reader: asyncio.StreamReader) -> bool:
    """Neither data nor an end."""
    try:
        async with asyncio.timeout(SILENT_S):
            await reader.read(1)
    except TimeoutError:
        return True
    return False


async def test_a_cut_link_is_silent_and_brings_what_it_held_once_healed() -> None:
    """Goal: no byte, no end, nothing lost, others unharmed. Method: send, connect and close in a cut, then heal."""
    async with world() as now:
        old, closing, other = await now.connected(), await now.connected(), await now.connected("127.0.0.3")
        for streams in (old, closing, other):
            await asked(streams, b"a")
        await now.order(Silence([LINK]))
        new = await now.connected()
        for _, writer in (old, new):
            writer.write(b"b")
        closing[1].close()
        assert await hears_nothing(old[0])
        assert await hears_nothing(new[0])
        assert now.ended == 0
        await asked(other, b"b")
        await now.order(Heal([LINK]))
        async with asyncio.timeout(ANSWER_MAX_S):
            assert await old[0].readexactly(1) == await new[0].readexactly(1) == b"b"
            while now.ended == 0:
                await asyncio.sleep(0)


async def test_a_reset_ends_what_is_there_and_nothing_else() -> None:
    """Goal: both sides notice at once. Method: reset one of two links; connect again."""
    async with world() as now:
        hurt, other = await now.connected(), await now.connected("127.0.0.3")
        await asked(hurt, b"a")
        await asked(other, b"a")
        await now.order(Reset([LINK]))
        async with asyncio.timeout(ANSWER_MAX_S):
            with pytest.raises(ConnectionResetError):
                await hurt[0].read(1)
            while now.ended == 0:
                await asyncio.sleep(0)
        await asked(other, b"b")
        await asked(await now.connected(), b"c")


async def test_a_delay_holds_up_each_direction() -> None:
    """Goal: late, and complete. Method: an echo over a slow link takes twice its delay, and less when healed."""
    async with world() as now:
        streams = await now.connected()
        await asked(streams, b"a")
        await now.order(Delay([LINK], SILENT_S))
        began_s = monotonic()
        await asked(streams, b"b")
        assert monotonic() - began_s >= 2 * SILENT_S
        await now.order(Heal([LINK]))
        await asked(streams, b"c")


async def test_ends_pass_and_a_server_that_is_not_there_resets() -> None:
    """Goal: a proxy hides neither. Method: close one side; connect while nobody listens behind the door."""
    async with world() as now:
        reader, writer = await now.connected()
        writer.write(b"a")
        writer.write_eof()
        async with asyncio.timeout(ANSWER_MAX_S):
            assert await reader.read() == b"a"
        nobody = PortReservation()
        port = nobody.take()
        await now.order(Door("client", "gone", "127.0.0.2", "127.0.0.1", "127.0.0.1", port))
        async with asyncio.timeout(ANSWER_MAX_S):
            lost, _ = await now.connected("127.0.0.2", port)
            with pytest.raises(ConnectionResetError):
                await lost.read(1)
        nobody.close()
