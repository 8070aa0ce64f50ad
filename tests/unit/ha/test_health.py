"""The health listener, over real loopback sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from ha.health import HealthListener, LoopPulse, Probes


class Role:
    """What the probes see."""

    live = True
    ready = True
    active = False


class FakeClock:
    """Moves on command."""

    now_s = 100.0

    def boottime_s(self) -> float:
        return self.now_s

    def wall_us(self) -> int:
        return 0

    async def sleep_s(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)


@pytest.fixture
async def listener() -> AsyncIterator[tuple[Role, int]]:
    role = Role()
    probes = Probes(lambda: role.live, lambda: role.ready, lambda: role.active, lambda: {"role": "passive", "epoch": 7})
    health = HealthListener(probes, host="127.0.0.1", port=0, metrics=lambda: b"notary_role 0\n")
    port = await health.start()
    yield role, port
    await health.stop()


async def ask(port: int, request: str) -> tuple[str, dict[str, str], str]:
    """Status line, headers and body of the raw answer, read to the end of the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request.encode())
    answer = (await asyncio.wait_for(reader.read(), 5)).decode()
    writer.close()
    head, _, body = answer.partition("\r\n\r\n")
    status, *lines = head.split("\r\n")
    return status, {k.lower(): v for k, v in (line.split(": ", 1) for line in lines)}, body


def get(path: str, method: str = "GET") -> str:
    return f"{method} {path} HTTP/1.1\r\nHost: health\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize("path", ["live", "ready", "active"])
async def test_each_check_follows_its_probe(listener: tuple[Role, int], path: str) -> None:
    """Goal: 200 while the probe holds, 503 when not, at once. Method: flip the probe between two requests."""
    role, port = listener
    setattr(role, path, True)
    assert "200" in (await ask(port, get(f"/health/{path}")))[0]
    setattr(role, path, False)
    status, headers, body = await ask(port, get(f"/health/{path}"))
    assert "503" in status
    assert headers["cache-control"] == "no-store"
    assert len(body) < 20


@pytest.mark.parametrize("headers", ["", "Host: localhost\r\n"])
async def test_http_1_0_without_a_host_is_accepted(listener: tuple[Role, int], headers: str) -> None:
    """Goal: HAProxy's plain check works. Method: its bytes, with and without a host."""
    role, port = listener
    role.active = True
    status, _, body = await ask(port, f"GET /health/active HTTP/1.0\r\n{headers}\r\n")
    assert status.startswith("HTTP/1.0 200")
    assert body == "active\n"


async def test_head_answers_without_a_body(listener: tuple[Role, int]) -> None:
    """Goal: HEAD has GET's status. Method: both roles."""
    role, port = listener
    role.active = True
    assert (await ask(port, get("/health/active", "HEAD")))[0::2] == ("HTTP/1.1 200 OK", "")
    role.active = False
    assert "503" in (await ask(port, get("/health/active", "HEAD")))[0]


async def test_detail_metrics_and_nothing_else(listener: tuple[Role, int]) -> None:
    """Goal: JSON detail, metrics, no other page, no writing. Method: one request each."""
    _, port = listener
    assert json.loads((await ask(port, get("/health")))[2]) == {"role": "passive", "epoch": 7}
    assert (await ask(port, get("/metrics")))[2] == "notary_role 0\n"
    assert "404" in (await ask(port, get("/health/other")))[0]
    assert "405" in (await ask(port, get("/health/active", "POST")))[0]


async def test_stop_may_be_repeated_and_frees_the_port() -> None:
    """Goal: a replica that stops leaves nothing listening. Method: stop twice, connect."""
    probes = Probes(lambda: True, lambda: True, lambda: True, dict)
    health = HealthListener(probes, host="127.0.0.1", port=0)
    port = await health.start()
    await health.stop()
    await health.stop()
    with pytest.raises(OSError):
        await asyncio.open_connection("127.0.0.1", port)


async def test_an_address_of_ipv6_with_brackets_is_listened_on() -> None:
    """Goal: a replica's host stands in URLs, too. Method: as the configuration gives it."""
    probes = Probes(lambda: True, lambda: True, lambda: True, dict)
    health = HealthListener(probes, host="[::1]", port=0)
    port = await health.start()
    _, writer = await asyncio.open_connection("::1", port)
    writer.close()
    await health.stop()


async def test_the_pulse_shows_a_stalled_loop() -> None:
    """Goal: the pulse ages when the loop does not run, and is young when it does. Method: move the clock under it."""
    clock = FakeClock()
    pulse = LoopPulse(clock)
    pulse.start()
    await asyncio.sleep(0)
    assert pulse.age_s() == 0.0
    clock.now_s += 3.5  # the loop was held up
    assert pulse.age_s() == 3.5
    await asyncio.sleep(0.15)
    assert pulse.age_s() == 0.0
    pulse.stop()
    pulse.stop()
