"""The port for HAProxy alone: each connection begins with its client's address, and only HAProxy may say it."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from ledger_api.server.proxied import ProxyListener
from ledger_api.server.settings import ProxySettings
from ledger_api.server.sources import source_of
from ledger_api.server.tls import make_tls
from replica.local.ports import LOOPBACK
from tests.certificates import Authority
from tests.unit.api.test_sources import header
from tests.waiting import eventually
from tests.worlds.api_world import ApiWorld, StubParticipant

CLIENT, STRANGER = "192.0.2.7", "127.0.0.3"
ABOUT = b"GET /v1/notary HTTP/1.1\r\nHost: localhost\r\n\r\n"
SERVED_MAX_S = 5.0


async def answer(port: int, *parts: bytes, source: str = LOOPBACK, tls: ssl.SSLContext | None = None) -> bytes:
    """The first line that comes back after these bytes; empty when the connection is closed. TLS begins behind them."""
    async with asyncio.timeout(SERVED_MAX_S):
        reader, writer = await asyncio.open_connection(LOOPBACK, port, local_addr=(source, 0))
        try:
            for part in parts:
                writer.write(part)
                await writer.drain()
            if tls is not None:
                await writer.start_tls(tls, server_hostname="localhost")
                writer.write(ABOUT)
            return await reader.readline()
        except ConnectionError:
            return b""
        finally:
            writer.close()


@pytest.mark.parametrize("tls", [False, True])
async def test_the_client_that_the_proxy_names_is_charged(tmp_path: Path, tls: bool) -> None:
    """Method: a header, in pieces; then a request, or a handshake. Then the sources that the server has."""
    given, trusted = {}, None
    if tls:
        authority = Authority(tmp_path)
        certificate, key = authority.issue("localhost")
        given = {"tls": {"certificate_file": certificate, "key_file": key}}
        trusted = ssl.create_default_context(cafile=str(authority.ca_file))
    world = ApiWorld(StubParticipant(), **given)
    seen = []
    enter = world.server.enter
    world.server.enter = lambda connection: (seen.append(connection.source), enter(connection))[1]  # type: ignore[method-assign]
    async with world.serve():
        context = None if world.settings.tls is None else make_tls(world.settings.tls)
        proxied = ProxyListener(world.server, ProxySettings(port=0, sources=("127.0.0.1",)), LOOPBACK, context)
        try:
            head, rest = header(CLIENT)
            parts = (head[:7], head[7:] + rest[:3], rest[3:]) + (() if tls else (ABOUT,))
            assert b" 200 " in await answer(proxied.port, *parts, tls=trusted)
            assert seen == [source_of((CLIENT, 0))]
            head, rest = header(CLIENT, command=0x20)  # the proxy for itself
            assert b" 200 " in await answer(proxied.port, head + rest, *(() if tls else (ABOUT,)), tls=trusted)
            assert seen[1:] == [source_of((LOOPBACK, 0))]
            await eventually(lambda: _is(world.server.shares.held == 0))
        finally:
            proxied.close()


async def test_nobody_else_names_clients(tmp_path: Path) -> None:
    """Method: a good header from another address; none; half of one; and the API's own port takes none."""
    world = ApiWorld(StubParticipant())
    head, rest = header(CLIENT)
    async with world.serve():
        proxied = ProxyListener(world.server, ProxySettings(port=0, sources=("127.0.0.1",)), LOOPBACK, None)
        try:
            assert await answer(proxied.port, head + rest, ABOUT, source=STRANGER) == b""
            assert await answer(proxied.port, ABOUT) == b""
            assert b" 200 " in await answer(proxied.port, head + rest, ABOUT)
            assert b" 400 " in await answer(world.port, head + rest, ABOUT)
            assert b" 200 " in await answer(world.port, ABOUT)
        finally:
            proxied.close()


async def _is(condition: bool) -> bool:
    return condition
