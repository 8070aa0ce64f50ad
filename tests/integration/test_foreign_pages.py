"""A page in a browser that lets its name resolve to us, or opens a WebSocket here: API, health and admin refuse it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest

from ha.health import HealthListener, Probes
from replica.notary.web_hosts import WebHosts
from replica.wiring import HAPROXY_ASKS_FOR
from tests.worlds.api_world import ApiWorld, StubParticipant

EVIL = "evil.example:8080"
CALLS = ("/", "/v1/notary", "/v1/completions?limit=2", "/v1/ledger-end", "/v1/updates", "/v1/endpoints", "/v1/nothing")
UPGRADE = (
    "GET /v1/submissions/stream HTTP/1.1\r\nHost: {host}\r\n{origin}Connection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    "Sec-WebSocket-Protocol: notary.v1\r\n\r\n"
)


async def refused(url: str, host: str) -> bool:
    async with aiohttp.ClientSession() as session, session.get(url, headers={"Host": host}) as answer:
        return answer.status == 403 and "WRONG_HOST" in await answer.text()


async def test_the_api_answers_to_its_own_names(tmp_path: Path) -> None:
    """Method: every kind of call under a foreign name; then under each name that is configured."""
    async with ApiWorld(StubParticipant(), hosts=("notary.example",)).serve() as world:
        for path in CALLS:
            assert await refused(world.endpoint + path, EVIL), path
            for host in ("notary.example", f"localhost:{world.port}", "127.0.0.1"):
                assert not await refused(world.endpoint + path, host), (path, host)


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("127.0.0.1", "http://evil.example", 403),
        ("127.0.0.1", "null", 403),
        (EVIL, "http://127.0.0.1", 403),
        ("127.0.0.1", "http://localhost:3000", 101),
        ("127.0.0.1", None, 101),
    ],
)
async def test_a_foreign_page_opens_no_websocket(tmp_path: Path, host: str, origin: str | None, status: int) -> None:
    async with ApiWorld(StubParticipant()).serve() as world:
        reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
        writer.write(UPGRADE.format(host=host, origin="" if origin is None else f"Origin: {origin}\r\n").encode())
        async with asyncio.timeout(5):
            line = await reader.readline()
        writer.close()
        assert int(line.split()[1]) == status


async def test_health_answers_to_haproxy_probes_and_prometheus() -> None:
    """Goal: nobody who looks after a replica is locked out. Method: the Host header of each; then a foreign one."""
    hosts = WebHosts(("notary-1.example", HAPROXY_ASKS_FOR), addresses=True)
    probes = Probes(lambda: True, lambda: True, lambda: True, dict)
    health = HealthListener(probes, host="127.0.0.1", port=0, metrics=lambda: b"", takes_host=hosts.takes_host)
    port = await health.start()
    try:
        for path in ("/health/active", "/health/ready", "/health/live", "/health", "/metrics"):
            url = f"http://127.0.0.1:{port}{path}"
            assert await refused(url, EVIL), path
            for host in ("notary", f"10.0.0.7:{port}", f"notary-1.example:{port}", "[2001:db8::7]", "localhost"):
                assert not await refused(url, host), (path, host)
    finally:
        await health.stop()
