"""Each caller has its share: while one takes all it can get, another one, from elsewhere, is served at once."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from ledger_api.client import encode_submission
from ledger_api.server.authorisation import Caller
from tests.integration.test_api_feeds import Ledger
from tests.waiting import eventually
from tests.worlds.api_world import ApiWorld, FixedCaller, StubParticipant, make_submission

GREEDY, OTHER = "127.0.0.2", "127.0.0.3"
SERVED_MAX_S = 5.0
FOLLOW = b"GET /v1/completions?follow=true HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
UPGRADE = (
    b"GET /v1/submissions/stream HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    b"Sec-WebSocket-Protocol: notary.v1\r\n\r\n"
)
ABOUT = b"GET /v1/notary HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Callers:
    """Connections from addresses of this machine, which are closed at the end."""

    def __init__(self, world: ApiWorld) -> None:
        self._world = world
        self._opened: list[Stream] = []

    async def connect(self, source: str) -> Stream:
        stream = await asyncio.open_connection("127.0.0.1", self._world.port, local_addr=(source, 0))
        self._opened.append(stream)
        return stream

    async def ask(self, source: str, raw: bytes) -> tuple[int, bytes]:
        """Status and the beginning of the answer, on a connection of its own which stays open."""
        reader, writer = await self.connect(source)
        writer.write(raw)
        return await answer_of(reader)

    async def close(self) -> None:
        for _, writer in self._opened:
            writer.close()
        for _, writer in self._opened:
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


async def answer_of(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    async with asyncio.timeout(SERVED_MAX_S):
        head = await reader.readuntil(b"\r\n\r\n")
        return int(head.split(b" ", 2)[1]), head + (b"" if b" 101 " in head[:15] else await reader.read(4_000))


@contextlib.asynccontextmanager
async def called(world: ApiWorld) -> AsyncIterator[Callers]:
    async with world.serve():
        callers = Callers(world)
        try:
            yield callers
        finally:
            await callers.close()


async def closed(streams: list[Stream], count: int) -> None:
    async def are_closed() -> bool:
        return sum(reader.at_eof() for reader, _ in streams) >= count

    await eventually(are_closed)


async def test_silent_connections_stop_nobody(tmp_path: Path) -> None:
    """Goal: who takes all connections leaves a share free, and gives way itself. Method: five times the bound, silent;
    another source is served meanwhile, and so is the same one, whose oldest goes."""
    async with called(ApiWorld(StubParticipant(), connections_max=20, first_request_max_s=60)) as callers:
        held = [await callers.connect(GREEDY) for _ in range(100)]
        await closed(held, 90)
        assert not any(reader.at_eof() for reader, _ in held[-10:])  # half of the bound, the newest
        assert (await callers.ask(OTHER, ABOUT))[0] == 200
        assert (await callers.ask(GREEDY, ABOUT))[0] == 200


async def test_connections_that_are_in_use_do_not_give_way(tmp_path: Path) -> None:
    """Goal: idle connections go first, and nobody's but those of whoever has most. Method: one source waits for answers
    on all of its share, another one idles; more of the first are refused."""
    participant = StubParticipant()
    participant.gate = asyncio.Event()
    body = encode_submission(make_submission())
    head = b"POST /v1/submissions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: "
    async with called(ApiWorld(participant, connections_max=20)) as callers:
        idle = [await callers.connect(OTHER) for _ in range(3)]
        busy = [await callers.connect(GREEDY) for _ in range(8)]
        for _, writer in busy:
            writer.write(head + b"%d\r\n\r\n" % len(body) + body)
        await eventually(lambda: _is(participant.reached == 8))
        more = [await callers.connect(GREEDY) for _ in range(5)]
        await closed(more, 5)
        assert not any(reader.at_eof() for reader, _ in (*idle, *busy))
        participant.gate.set()
        assert [(await answer_of(reader))[0] for reader, _ in busy] == [200] * 8


async def test_a_connection_without_a_request_is_closed_soon(tmp_path: Path) -> None:
    """Method: one is silent, one sends a head without an end, one asks and then idles."""
    async with called(ApiWorld(StubParticipant(), first_request_max_s=0.3)) as callers:
        silent, partial, used = [await callers.connect(GREEDY) for _ in range(3)]
        partial[1].write(ABOUT[:-2])
        used[1].write(ABOUT)
        assert (await answer_of(used[0]))[0] == 200
        await closed([silent, partial], 2)
        used[1].write(ABOUT)
        assert (await answer_of(used[0]))[0] == 200


@contextlib.contextmanager
def as_users(world: ApiWorld) -> Iterator[None]:
    """With tokens, the holder is the user: here the header names it."""

    class ByHeader(FixedCaller):
        def remembered(self, request: Any) -> Caller:
            return Caller(subject=request.headers["X-User"])

    world.api._authentication = ByHeader(Caller())
    yield


@pytest.mark.parametrize("tokens", [False, True])
async def test_streams_have_shares(tmp_path: Path, tokens: bool) -> None:
    """Goal: who holds all the streams that it gets leaves some, and submission streams are apart. Method: one caller
    opens streams until it is refused; then another one, by its address or by its user's name."""
    ledger = Ledger()
    ledger.publish(1)
    world = ApiWorld(ledger, streams_max=8)
    async with called(world) as callers:
        greedy, other = (GREEDY, b""), (OTHER, b"")
        if tokens:
            greedy, other = (GREEDY, b"X-User: greedy\r\n"), (GREEDY, b"X-User: other\r\n")

        async def ask(caller: tuple[str, bytes], raw: bytes) -> tuple[int, bytes]:
            return await callers.ask(caller[0], raw.replace(b"Host:", caller[1] + b"Host:"))

        with as_users(world) if tokens else contextlib.nullcontext():
            for raw, code in ((FOLLOW, b"TOO_MANY_STREAMS"), (UPGRADE, b"OVERLOADED")):
                opened = await asyncio.gather(*(ask(greedy, raw) for _ in range(12)))  # at once
                refused = [answer for status, answer in opened if status == 503]
                assert (len(refused), all(code in answer for answer in refused)) == (8, True)
                taken = next(status for status, _ in opened if status != 503)
                assert (await ask(other, raw))[0] == taken


async def test_scans_are_charged_by_rows(tmp_path: Path) -> None:
    """Goal: a page costs what was looked through for it. Method: pages that match nothing until they are refused; then
    pages of another caller, and a stream of the same one, which waits instead."""
    ledger = Ledger()
    ledger.publish(9_000)
    async with called(ApiWorld(ledger, scan_rows_per_s=1_000.0)) as callers:
        page = b"GET /v1/completions?after=%d&party=nobody HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        reached = 0
        for _ in range(20):  # more than one, where the machine gives the share back between two
            status, answer = await callers.ask(GREEDY, page % reached)
            document = json.loads(answer.partition(b"\r\n\r\n")[2])
            if status != 200:
                break
            assert document["next_after"] - reached < 9_000  # a page ends where the share does
            reached = 0 if reached > 6_000 else document["next_after"]
        assert (status, document["code"], 0 < document["retry_after_s"] <= 2) == (429, "RATE_EXCEEDED", True)
        assert reached > 0
        assert (await callers.ask(OTHER, page % 0))[0] == 200
        status, answer = await callers.ask(GREEDY, FOLLOW.replace(b"follow", b"after=8990&follow"))
        assert (status, b'"offset":8991' in answer) == (200, True)


async def _is(condition: bool) -> bool:
    return condition
