"""Clients that try to use a front end up: a process of its own, whose memory is watched and who must serve others.

Bounds are small here, so that each attack passes them many times over. Each attack runs while an honest client
submits; it must be answered every time, and the process must not grow by more than its bounds and some room.
"""

# ruff: noqa: F811 (fixtures come by import)
from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import aiohttp
import pytest

from ledger_api.client import NotaryClient, RetryPolicy
from replica.notary.answers import Notarised
from tests.integration.test_api_process import Core, connected, core, folder  # noqa: F401 (fixtures)
from tests.waiting import eventually
from tests.worlds.api_world import make_submission

MIB = 2**20
ROOM_BYTES = 64 * MIB  # for what Python and the allocator keep beside the bounds
BOUNDS = {
    "connections_max": 200,
    "idle_max_s": 1.0,
    "body_read_max_s": 1.0,
    "body_max_bytes": MIB,
    "bodies_max_bytes": 8 * MIB,
    "header_max_bytes": 4_096,
    "headers_max": 32,
    "stream_read_max_s": 1.0,
    "streams_max": 20,
}
SUBMIT = b"POST /v1/submissions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
UPGRADE = (
    b"GET /v1/submissions/stream HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    b"Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n"
)
Attack = Callable[[int], Awaitable[None]]


class Victim:
    """A front end under attack."""

    def __init__(self, core: Core, pid: int) -> None:
        self.core = core
        self._status = Path(f"/proc/{pid}/status")
        self.before_bytes = self.resident_bytes("VmRSS")
        self.answers: list[object] = []  # those of the honest client

    def resident_bytes(self, line: str) -> int:
        (kib,) = [text.split()[1] for text in self._status.read_text().splitlines() if text.startswith(line)]
        return int(kib) * 1024

    @property
    def grown_bytes(self) -> int:
        """By how much it has ever been larger than at the start."""
        return self.resident_bytes("VmHWM") - self.before_bytes

    async def serves_others(self) -> None:
        """Wait until the honest client was answered a few times more."""
        enough = len(self.answers) + 3

        async def are_there() -> bool:
            return len(self.answers) >= enough

        await eventually(are_there, 60)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.core.port)

    async def send(self, *parts: bytes) -> bytes:
        """Send until the server has enough; what it answered until it closed."""
        reader, writer = await self.connect()
        answered = b""
        try:
            async with asyncio.timeout(30):
                with contextlib.suppress(ConnectionError):
                    for part in parts:
                        writer.write(part)
                        await writer.drain()
                with contextlib.suppress(ConnectionError):
                    answered = await reader.read()
        finally:
            writer.close()
        return answered


@contextlib.asynccontextmanager
async def attacked(core: Core, **bounds: object) -> AsyncIterator[Victim]:
    """A front end that an honest client uses all the while, and that is well afterwards."""
    document = core.document()
    document["api"] |= BOUNDS | {"batch_max": 100} | bounds
    process = await core.spawn(document)
    await connected(core)
    async with NotaryClient(core.endpoint, RetryPolicy(deadline_s=60.0), connections_max=1) as client:
        await client.submit(make_submission())
        victim = Victim(core, process.pid)

        async def be_honest() -> None:
            while True:
                victim.answers.append(await client.submit(make_submission()))
                await asyncio.sleep(0.01)

        honest = asyncio.create_task(be_honest())
        try:
            yield victim
            await victim.serves_others()
        finally:
            honest.cancel()
            await asyncio.gather(honest, return_exceptions=True)
    assert process.returncode is None
    assert all(isinstance(answer, Notarised) for answer in victim.answers)
    assert victim.grown_bytes < BOUNDS["bodies_max_bytes"] + ROOM_BYTES
    process.terminate()
    code, lines = await core.end_of(process)
    assert code == 0
    assert not [line for line in lines if line["event"] in ("request_failed", "stream_failed")]


async def together(count: int, attack: Attack) -> None:
    await asyncio.gather(*(attack(number) for number in range(count)))


async def test_slow_heads_do_not_hold_connections(core: Core) -> None:
    """Goal: slow-loris is parted from, however it dribbles. Method: 150 heads a byte at a time, to their end."""
    async with attacked(core) as victim:

        async def dribble(_: int) -> None:
            reader, writer = await victim.connect()
            async with asyncio.timeout(60):
                writer.write(b"GET /v1/notary HTTP/1.1\r\nX-Slow: ")
                with contextlib.suppress(ConnectionError):
                    while not reader.at_eof():
                        writer.write(b"a")
                        await writer.drain()
                        await asyncio.wait([asyncio.ensure_future(reader.read(1))], timeout=0.1)
            writer.close()

        await together(150, dribble)


@pytest.mark.thorough
async def test_slow_bodies_give_their_room_back(core: Core) -> None:
    """Goal: bodies that never end are bounded together, and in time. Method: 60 of 1 MiB, all but the last byte."""
    async with attacked(core) as victim:

        async def hold(_: int) -> None:
            answered = await victim.send(SUBMIT + b"Content-Length: %d\r\n\r\n" % MIB, b" " * (MIB - 1))
            assert b"BODY_TOO_SLOW" in answered or b"OVERLOADED" in answered

        await together(60, hold)


async def test_endless_heads_and_bodies_are_cut(core: Core) -> None:
    """Goal: nothing is kept of what is too large. Method: 20 each of a long field, many fields, a long line, chunks."""
    attacks = {
        b"HTTP_MALFORMED": [
            (b"GET /v1/notary HTTP/1.1\r\nX: ", *[b"a" * 65_536] * 64),
            (b"GET /v1/notary HTTP/1.1\r\n", *[b"X-%d: a\r\n" % number for number in range(2_000)], b"\r\n"),
            (b"GET /", *[b"a" * 65_536] * 64),
        ],
        b"BODY_TOO_LARGE": [
            (SUBMIT + b"Transfer-Encoding: chunked\r\n\r\n", *[b"10000\r\n" + b" " * 65_536 + b"\r\n"] * 64),
            (SUBMIT + b"Content-Length: 999999999999\r\n\r\n", b" "),
        ],
    }
    async with attacked(core) as victim:
        for code, sent in attacks.items():
            for parts in sent:
                for answered in await asyncio.gather(*(victim.send(*parts) for _ in range(20))):
                    assert code in answered or b"OVERLOADED" in answered or answered == b""  # or reset before it reads


@pytest.mark.thorough
async def test_bombs_are_not_unpacked(core: Core) -> None:
    """Goal: a few bytes never become many. Method: 64 MiB of spaces as gzip, and as a compressed WebSocket message."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = packer.compress(b" " * (64 * MIB)) + packer.flush()
    raw = zlib.compressobj(9, zlib.DEFLATED, -15)
    deflated = raw.compress(b" " * (64 * MIB)) + raw.flush(zlib.Z_SYNC_FLUSH)[:-4]
    async with attacked(core) as victim:
        head = SUBMIT + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(bomb)
        for answered in await asyncio.gather(*(victim.send(head + bomb) for _ in range(10))):
            assert b"MEDIA_TYPE_UNSUPPORTED" in answered or answered == b""
        for answered in await asyncio.gather(
            *(victim.send(UPGRADE, frame(deflated, compressed=True)) for _ in range(10))
        ):
            assert b"101 Switching" in answered
            assert b"permessage-deflate" not in answered


async def test_messages_without_an_end_are_cut(core: Core) -> None:
    """Goal: a stream is no way round the limit of a body. Method: a length of 1 TiB, and fragments without an end."""
    async with attacked(core) as victim:
        huge = b"\x82\xff" + (2**40).to_bytes(8, "big") + bytes(4)
        fragments = [b"\x02\xff" + (65_536).to_bytes(8, "big") + bytes(4) + b" " * 65_536]
        fragments += [b"\x00" + fragments[0][1:]] * 63
        for sent in ([huge, *[b" " * 65_536] * 64], fragments):
            await together(10, lambda _, sent=sent: victim.send(UPGRADE, *sent))  # type: ignore[misc]


async def test_more_connections_than_there_may_be_are_closed_at_once(core: Core) -> None:
    """Goal: descriptors are bounded, and free again. Method: 500 idle connections; most closed; then all gone."""
    async with attacked(core, idle_max_s=60.0) as victim:
        opened = await asyncio.gather(*(victim.connect() for _ in range(500)))

        async def are_closed() -> bool:
            return sum(reader.at_eof() for reader, _ in opened) >= 500 - BOUNDS["connections_max"]  # type: ignore[operator]

        await eventually(are_closed, 30)
        for _, writer in opened:
            writer.close()

        async def answers() -> bool:
            try:
                async with aiohttp.ClientSession() as session, session.get(core.endpoint + "/v1/notary") as response:
                    return response.status == 200
            except aiohttp.ClientError:
                return False

        await eventually(answers, 30)


async def test_requests_in_a_row_without_reading_are_bounded(core: Core) -> None:
    """Goal: answers pile up for no caller. Method: 10 connections, 20,000 calls each, and nothing read."""
    async with attacked(core) as victim:

        async def flood(_: int) -> None:
            _, writer = await victim.connect()
            with contextlib.suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(2):
                    for _ in range(200):
                        writer.write(b"GET /v1/notary HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100)
                        await writer.drain()
            await victim.serves_others()
            writer.close()

        await together(10, flood)


def frame(payload: bytes, *, compressed: bool) -> bytes:
    """A whole binary message of a client, with a mask of zeros."""
    first = 0x82 | (0x40 if compressed else 0)
    return bytes([first, 0xFF]) + len(payload).to_bytes(8, "big") + bytes(4) + payload


pytestmark = pytest.mark.timeout(120)
