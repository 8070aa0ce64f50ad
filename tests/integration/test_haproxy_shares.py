"""A real HAProxy in front of a real front end: shares by the clients' own addresses, on both."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from haproxy.render import Endpoint, HaproxySettings, ReplicaAddress
from ledger_api.server.proxied import ProxyListener
from ledger_api.server.settings import ProxySettings
from ledger_api.server.sources import source_of
from ledger_api.server.tls import make_tls
from replica.local.haproxy import HaproxyServer
from replica.local.ports import LOOPBACK, PortReservation
from tests.certificates import Authority
from tests.closing import listening
from tests.waiting import eventually
from tests.worlds.api_world import ApiWorld, StubParticipant

GREEDY, OTHER = "127.0.0.2", "127.0.0.3"
CONNECTIONS_MAX = 20
ABOUT = b"GET /v1/notary HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
SERVED_MAX_S = 5.0
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _is_active(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(asyncio.IncompleteReadError):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")


@contextlib.asynccontextmanager
async def balanced(folder: Path, world: ApiWorld, **settings: object) -> AsyncIterator[int]:
    """The port of HAProxy, which names its clients to the front end."""
    tls = None if world.settings.tls is None else make_tls(world.settings.tls)
    with PortReservation() as ports:
        address = ReplicaAddress(
            name="r1", host=LOOPBACK, api_port=ports.take(), proxy_port=ports.take(), health_port=ports.take()
        )
        assert address.proxy_port is not None
        described = {
            "bind": Endpoint(port=ports.take()),
            "replicas": (address,),
            "stats_socket": str(folder / "admin.sock"),
            "state_file": str(folder / "state"),
            "threads": 1,
            **settings,
        }
        haproxy = HaproxyServer(folder, HaproxySettings.model_validate(described))
        async with world.serve(), listening(_is_active, LOOPBACK, address.health_port):
            proxied = ProxyListener(
                world.server, ProxySettings(port=address.proxy_port, sources=("127.0.0.1",)), LOOPBACK, tls
            )
            try:
                await haproxy.start()
                yield haproxy.settings.bind.port
            finally:
                await haproxy.stop()
                proxied.close()


async def connect(port: int, source: str, tls: ssl.SSLContext | None = None) -> Stream:
    name = None if tls is None else "localhost"
    return await asyncio.open_connection(LOOPBACK, port, local_addr=(source, 0), ssl=tls, server_hostname=name)


async def status_of(port: int, source: str, tls: ssl.SSLContext | None = None) -> int:
    """The status of an answer on a connection of its own; 0 when it is closed without one."""
    try:
        async with asyncio.timeout(SERVED_MAX_S):
            reader, writer = await connect(port, source, tls)
            try:
                writer.write(ABOUT)
                line = await reader.readline()
            finally:
                writer.close()
    except ConnectionError:
        return 0
    return int(line.split(b" ", 2)[1]) if line else 0


def is_gone(reader: asyncio.StreamReader) -> bool:
    return reader.at_eof() or reader.exception() is not None


async def is_served(port: int, source: str, tls: ssl.SSLContext | None = None) -> bool:
    return await status_of(port, source, tls) == 200


@contextlib.asynccontextmanager
async def silent(port: int, count: int) -> AsyncIterator[list[Stream]]:
    """So many connections of the greedy caller that send no byte; without those that were closed before they began."""
    held: list[Stream] = []
    for _ in range(count):
        with contextlib.suppress(ConnectionError):
            held.append(await connect(port, GREEDY))
    try:
        yield held
    finally:
        for _, writer in held:
            writer.transport.abort()


async def are_gone(held: list[Stream], count: int) -> bool:
    return sum(is_gone(reader) for reader, _ in held) >= count


async def test_silent_connections_take_half_at_most(tmp_path: Path) -> None:
    """Goal: whoever fills HAProxy leaves room. Method: twice the bound, silent, from one address; another is served."""
    world = ApiWorld(StubParticipant())
    async with balanced(tmp_path, world, connections_max=CONNECTIONS_MAX, first_byte_max_s=300) as port:
        await eventually(lambda: is_served(port, OTHER))
        async with silent(port, 2 * CONNECTIONS_MAX) as held:
            assert await is_served(port, OTHER)
            await eventually(lambda: are_gone(held, len(held) - CONNECTIONS_MAX // 2))
            assert not await is_served(port, GREEDY)
            assert sum(not is_gone(reader) for reader, _ in held) >= CONNECTIONS_MAX // 2 - 1


async def test_silence_lasts_not_for_long_and_reaches_no_front_end(tmp_path: Path) -> None:
    world = ApiWorld(StubParticipant())
    async with balanced(tmp_path, world, connections_max=CONNECTIONS_MAX, first_byte_max_s=0.5) as port:
        await eventually(lambda: is_served(port, OTHER))
        async with silent(port, CONNECTIONS_MAX) as held:
            await eventually(lambda: are_gone(held, len(held)))
            assert world.server.shares.of(source_of((GREEDY, 0))) == 0
            await eventually(lambda: is_served(port, GREEDY))


async def test_too_many_connections_of_one_address_are_refused(tmp_path: Path) -> None:
    async with balanced(tmp_path, ApiWorld(StubParticipant()), source_connects_per_s=3.0) as port:
        await eventually(lambda: is_served(port, OTHER))
        answered = [await status_of(port, GREEDY) for _ in range(40)]
        assert answered == [200] * 30 + [0] * 10  # so many in ten seconds
        assert await is_served(port, OTHER)


@pytest.mark.parametrize("tls", [False, True])
async def test_front_ends_know_the_clients_address(tmp_path: Path, tls: bool) -> None:
    """Goal: behind HAProxy each client has its own share, with TLS as well. Method: what the server charges."""
    given, trusted = {}, None
    if tls:
        authority = Authority(tmp_path)
        certificate, key = authority.issue("localhost")
        given = {"tls": {"certificate_file": certificate, "key_file": key}}
        trusted = ssl.create_default_context(cafile=str(authority.ca_file))
    world = ApiWorld(StubParticipant(), **given)
    async with balanced(tmp_path, world) as port:
        await eventually(lambda: is_served(port, OTHER, trusted))
        _, writer = await connect(port, GREEDY, trusted)
        writer.write(ABOUT)
        await eventually(lambda: _is(world.server.shares.of(source_of((GREEDY, 0))) == 1))
        writer.transport.abort()
        await eventually(lambda: _is(world.server.shares.held == 0))


async def test_only_haproxy_may_name_clients(tmp_path: Path) -> None:
    """Goal: nobody forges an address, and what is no header is no connection. Method: from another address; without a
    header; with half of one."""
    world = ApiWorld(StubParticipant())
    async with world.serve():
        proxied = ProxyListener(world.server, ProxySettings(port=0, sources=("127.0.0.1",)), LOOPBACK, None)
        try:
            assert await status_of(proxied.port, OTHER) == 0
            assert await status_of(proxied.port, LOOPBACK) == 0  # HTTP is no header
            reader, writer = await connect(proxied.port, LOOPBACK)
            writer.write(b"\r\n\r\n\0\r\nQUIT\n\x21")
            writer.write_eof()
            assert await reader.read() == b""
            writer.close()
            assert world.server.shares.held == 0
        finally:
            proxied.close()


async def _is(condition: bool) -> bool:
    return condition
