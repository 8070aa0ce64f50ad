"""The forwarder in HAProxy's place: connections lead to the active replica, and none stays with one that is not."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, suppress

import pytest

from haproxy.render import Endpoint, ReplicaAddress
from replica.local.forwarder import CHECK_MAX_S, Forwarder, chosen
from replica.local.ports import PortReservation
from replica.local.process import ServerFailed
from tests.closing import listening
from tests.waiting import eventually

HOST = "127.0.0.1"
CUT = (ConnectionResetError, asyncio.IncompleteReadError)
BIG = bytes(range(256)) * 4_000


def test_a_new_connection_goes_to_the_active_replica_with_the_fewest() -> None:
    """Goal: connections are spread where several serve. Method: each case."""
    assert chosen([], ["r1"]) is None
    assert chosen(["r3", "r2"], []) == "r2"
    assert chosen(["r2", "r3"], ["r2"]) == "r3"
    assert chosen(["r2", "r3"], ["r2", "r3", "r3"]) == "r2"
    assert chosen(["r2"], ["r2", "r2"]) == "r2"


class Fake:
    """A replica's two ports: it says what it is told, and echoes behind its name until the client has ended."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.active = False
        self.late = 0  # so many more checks get no answer
        self.address: ReplicaAddress

    async def health(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        question = await reader.readuntil(b"\r\n\r\n")
        assert question.startswith(b"GET /health/active HTTP/1.1\r\n")
        if self.late:
            self.late -= 1
            await reader.read()
            return
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" if self.active else b"HTTP/1.1 503 Service Unavailable\r\n\r\n")
        await writer.drain()

    async def api(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(self.name.encode())
        while chunk := await reader.read(1_000):
            writer.write(chunk)
            await writer.drain()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with listening(self.health, HOST) as health_port, listening(self.api, HOST) as api_port:
            self.address = ReplicaAddress(name=self.name, host=HOST, api_port=api_port, health_port=health_port)
            yield


@pytest.fixture
def ports() -> Iterator[PortReservation]:
    """Below those of outgoing connections: one of these could have a port by the time that somebody listens there."""
    with closing(PortReservation()) as found:
        yield found


async def test_a_late_answer_cuts_nobody_and_silence_does(ports: PortReservation) -> None:
    """Goal: a busy machine is no fail-over. Method: one check without an answer under an open connection; then all."""
    only = Fake("r1")
    only.active = True
    port = ports.take()
    async with asyncio.timeout(30), only.running():
        forwarder = Forwarder(Endpoint(host=HOST, port=port), [only.address])
        await forwarder.start()
        try:

            async def is_up() -> bool:
                return (await forwarder.servers())["r1"].up

            await eventually(is_up)
            reader, writer = await asyncio.open_connection(HOST, port)
            assert await reader.readexactly(2) == b"r1"
            only.late = 1
            await asyncio.sleep(1.5 * CHECK_MAX_S)
            assert only.late == 0
            writer.write(b"still here")
            assert await reader.readexactly(10) == b"still here"
            only.late = 1_000
            with pytest.raises(CUT):
                await reader.readexactly(1)
            writer.close()
        finally:
            await forwarder.stop()


async def test_connections_lead_to_the_active_replica_and_are_cut_with_its_role(ports: PortReservation) -> None:
    """Goal: what HAProxy does for the endpoint. Method: nobody active; one; half a million bytes through it, ended by
    one side; another one active, with a connection open to the first; a port that is taken."""
    first, second = Fake("r1"), Fake("r2")
    port = ports.take()
    async with asyncio.timeout(30), first.running(), second.running():
        gone = ReplicaAddress(name="r3", host=HOST, api_port=ports.take(), health_port=ports.take())
        forwarder = Forwarder(Endpoint(host=HOST, port=port), [first.address, second.address, gone])
        await forwarder.start()

        async def leads_to(name: str | None) -> None:
            async def seen() -> bool:
                return [one for one, state in (await forwarder.servers()).items() if state.up] == (
                    [name] if name else []
                )

            await eventually(seen)

        async def both_up() -> bool:
            return sum(state.up for state in (await forwarder.servers()).values()) == 2

        try:
            reader, writer = await asyncio.open_connection(HOST, port)
            with pytest.raises(CUT):
                await reader.readexactly(2)
            writer.close()
            first.active = True
            await leads_to("r1")
            reader, writer = await asyncio.open_connection(HOST, port)
            writer.write(BIG)
            writer.write_eof()
            assert await reader.read() == b"r1" + BIG
            writer.close()
            reader, writer = await asyncio.open_connection(HOST, port)
            assert await reader.readexactly(2) == b"r1"
            assert (await forwarder.servers())["r1"].sessions == 1
            first.active, second.active = False, True
            with pytest.raises(CUT):
                await reader.readexactly(1)
            writer.close()
            await leads_to("r2")
            reader, writer = await asyncio.open_connection(HOST, port)
            assert await reader.readexactly(2) == b"r2"
            with pytest.raises(ServerFailed, match="not free"):
                await Forwarder(Endpoint(host=HOST, port=port), [gone]).start()
            first.active = True  # where all serve, none is cut, and the next one goes to whoever has fewer
            await eventually(both_up)
            other_reader, other_writer = await asyncio.open_connection(HOST, port)
            assert await other_reader.readexactly(2) == b"r1"
            writer.write(b"still here")
            assert await reader.readexactly(10) == b"still here"
            first.active = second.active = False
            await leads_to(None)
            for each in (writer, other_writer):
                each.close()
        finally:
            await forwarder.stop()


@pytest.mark.parametrize("turns", range(6))
@pytest.mark.parametrize("present", [None, "r1"])
async def test_no_connection_outlives_it(ports: PortReservation, present: str | None, turns: int) -> None:
    """Goal: a connection that arrives while it ends is closed. Method: one, so many turns of the loop before."""
    only = Fake("r1")
    port = ports.take()
    async with asyncio.timeout(30), only.running():
        forwarder = Forwarder(Endpoint(host=HOST, port=port), [only.address])
        await forwarder.start()
        forwarder._present = present
        with socket.create_connection((HOST, port), timeout=5) as client:
            for _ in range(turns):
                await asyncio.sleep(0)
            await forwarder.stop()
            for _ in range(3):  # what was aborted is closed two turns later
                await asyncio.sleep(0)
            with suppress(ConnectionResetError):
                assert await asyncio.to_thread(client.recv, 1) == b""


async def test_a_replica_that_does_not_answer_delays_no_other(
    ports: PortReservation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: behind a frozen active the next one is found at once. Method: one never answers, and is waited for long."""
    monkeypatch.setattr("replica.local.forwarder.CHECK_MAX_S", 300.0)
    active = Fake("r2")
    active.active = True

    async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    async with asyncio.timeout(30), active.running(), listening(silent, HOST) as health_port:
        frozen = ReplicaAddress(name="r1", host=HOST, api_port=ports.take(), health_port=health_port)
        forwarder = Forwarder(Endpoint(host=HOST, port=ports.take()), [frozen, active.address])
        await forwarder.start()

        async def seen() -> bool:
            return (await forwarder.servers())["r2"].up

        try:
            await eventually(seen)
        finally:
            await forwarder.stop()
