"""Clients that end their side of the connection once they have asked, as `nc -N` and simple proxies do."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from ledger_api.client.signing import encode_submission
from tests.waiting import eventually
from tests.worlds.api_world import ApiWorld, StubParticipant, make_submission


def submit() -> bytes:
    body = encode_submission(make_submission())
    head = b"POST /v1/submissions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


async def gone(world: ApiWorld) -> None:
    """Wait until no connection is left."""

    async def none_left() -> bool:
        return not world.server.connections

    await eventually(none_left)


async def test_what_was_asked_before_a_half_close_is_answered(tmp_path: Path) -> None:
    """Goal: a whole request is answered, and the connection ends. Method: one, three in a row, and one whose answer
    takes its time."""
    participant = StubParticipant()
    async with ApiWorld(participant, idle_max_s=60.0).serve() as world:
        for count in (1, 3):
            answered = await world.exchange(b"".join(submit() for _ in range(count)))
            assert answered.count(b"HTTP/1.1 200 OK") == answered.count(b'"code":"NOTARISED"') == count
        participant.gate = asyncio.Event()
        asking = asyncio.create_task(world.exchange(submit()))
        await asyncio.sleep(0.3)
        assert not asking.done()
        participant.gate.set()
        assert b'"code":"NOTARISED"' in await asking
        await gone(world)


async def test_a_half_close_where_nothing_whole_was_asked_ends_the_connection(tmp_path: Path) -> None:
    """Goal: nobody holds a connection open with half of it. Method: nothing, half a head, half a body, a stream."""
    follow = b"GET /v1/completions?follow=true HTTP/1.1\r\nHost: localhost\r\n\r\n"
    participant = StubParticipant()
    async with ApiWorld(participant, idle_max_s=60.0, body_read_max_s=60.0).serve() as world:
        async with asyncio.timeout(8):
            assert await world.exchange(b"") == b""
            assert await world.exchange(submit()[:40]) == b""
            assert b'"code":"HTTP_MALFORMED"' in await world.exchange(submit()[:-9])
            await world.exchange(follow)
            reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
            writer.write(follow)
            await reader.readuntil(b"\r\n\r\n")
            writer.write_eof()
            with contextlib.suppress(asyncio.IncompleteReadError):
                await reader.read()
            writer.close()
            await gone(world)
    assert participant.reached == 0
    assert world.counts.streams == 0
