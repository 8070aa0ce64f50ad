"""A client's connection: what aiohttp keeps of bytes that are no HTTP is bounded."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ledger_api.client import encode_submission
from ledger_api.server.connections import Connection
from tests.waiting import eventually
from tests.worlds.api_world import ApiWorld, StubParticipant, make_submission


async def test_what_follows_bytes_that_are_no_http_is_dropped(tmp_path: Path) -> None:
    """Goal: garbage after a request that waits fills no memory, and the request gets its answer. Method: a submission
    without an answer yet, then garbage in pieces; what the connection has queued."""
    participant = StubParticipant()
    participant.gate = asyncio.Event()
    body = encode_submission(make_submission())
    head = b"POST /v1/submissions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += b"Content-Length: %d\r\n\r\n"
    async with ApiWorld(participant).serve() as world:
        reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
        writer.write(head % len(body) + body)
        await eventually(lambda: _is(len(participant.submitted) == 1))
        (connection,) = world.server.connections
        assert isinstance(connection, Connection)
        for _ in range(20):
            writer.write(b"no HTTP \x00 " + b"x" * 5_000)
            await writer.drain()
            await asyncio.sleep(0.01)
        await eventually(lambda: _is(len(connection._messages) > 0))
        assert len(connection._messages) == 1
        assert len(connection._messages[0][0].message) <= 200
        participant.gate.set()
        async with asyncio.timeout(30):
            answers = await reader.read()
        writer.close()
    assert answers.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1 400 " in answers and b'"HTTP_MALFORMED"' in answers


async def _is(condition: bool) -> bool:
    return condition
