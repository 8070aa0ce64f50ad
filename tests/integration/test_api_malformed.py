"""What is no proper HTTP, or no proper WebSocket: an answer that names the mistake, never an error of our own, few log
lines."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from ledger_api.client.signing import encode_submission
from tests.worlds.api_world import ApiWorld, StubParticipant, make_submission

KEY = b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
VERSION = b"Sec-WebSocket-Version: 13\r\n"
UPGRADE = b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
HANDSHAKES = {
    "nothing but the upgrade": b"Upgrade: websocket\r\n",
    "no key": UPGRADE + VERSION,
    "no version": UPGRADE + KEY,
    "an old version": UPGRADE + KEY + b"Sec-WebSocket-Version: 5\r\n",
    "a short key": UPGRADE + VERSION + b"Sec-WebSocket-Key: AAAA\r\n",
    "a key that is no base64": UPGRADE + VERSION + b"Sec-WebSocket-Key: ======\r\n",
    "a key that is not ASCII": UPGRADE + VERSION + b"Sec-WebSocket-Key: \xff\xfe\xc3\xa9AAAAAAAAAAAAAAAAAA==\r\n",
    "no Connection: Upgrade": b"Upgrade: websocket\r\n" + KEY + VERSION,
    "another value": b"Connection: Upgrade\r\nUpgrade: websocket2\r\n" + KEY + VERSION,
}
REQUESTS = {
    "a path that is no text": b"GET /v1/states/\xff\xfe HTTP/1.1\r\nHost: localhost\r\n",
    "an unknown path that is no text": b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n",
    "a state that is no text": b"GET /v1/states/%ED%A0%80:1 HTTP/1.1\r\nHost: localhost\r\n",
    "a parameter that is no text": b"GET /v1/completions?%FF=1 HTTP/1.1\r\nHost: localhost\r\n",
    "a parameter of raw bytes": b"GET /v1/completions?\xff\xfe=1 HTTP/1.1\r\nHost: localhost\r\n",
    "a last event that is none": (
        b"GET /v1/completions?follow=true HTTP/1.1\r\nHost: localhost\r\nLast-Event-ID: \xff&x\r\n"
    ),
    "a media type that is no text": b"POST /v1/submissions HTTP/1.1\r\nContent-Type: \xff\r\nContent-Length: 0\r\n",
    "a length that is none": b"POST /v1/submissions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1e3\r\n",
    "two lengths": b"POST /v1/submissions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n",
    "a coding that is none": b"POST /v1/submissions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip, x\r\n",
    "a version that is none": b"GET /v1/notary HTTP/9.9\r\nHost: localhost\r\n",
    "an authority": b"GET http://[::1/v1/notary HTTP/1.1\r\nHost: localhost\r\n",
    "CONNECT": b"CONNECT x:80 HTTP/1.1\r\nHost: localhost\r\n",
    "OPTIONS *": b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n",
    "another protocol": b"GET /v1/notary HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n",
}


MISTAKES = {(400, "HTTP_MALFORMED"), (426, "UPGRADE_REQUIRED")}


async def first_answer(world: ApiWorld, raw: bytes) -> bytes:
    """The first answer on a connection, which the client then ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
    try:
        writer.write(raw)
        async with asyncio.timeout(30):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].split()[0])
            return head + await reader.readexactly(length)
    finally:
        writer.close()


def status_and_code(answered: bytes) -> tuple[int, str]:
    head, _, body = answered.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body).get("code", "")


@pytest.mark.parametrize("headers", HANDSHAKES.values(), ids=list(HANDSHAKES))
async def test_a_malformed_handshake_is_the_client_s_mistake(headers: bytes, tmp_path: Path) -> None:
    """Goal: 4xx with a code, and no flood of log lines. Method: each mistake, fifty times."""
    async with ApiWorld(StubParticipant(), problem_logs_per_s=3).serve() as world:
        with capture_logs() as lines:
            for _ in range(50):
                raw = b"GET /v1/submissions/stream HTTP/1.1\r\nHost: localhost\r\n" + headers + b"\r\n"
                assert status_and_code(await first_answer(world, raw)) in MISTAKES
    assert len(lines) <= 12
    assert {line["log_level"] for line in lines} == {"info"}


@pytest.mark.parametrize("head", REQUESTS.values(), ids=list(REQUESTS))
async def test_malformed_http_is_never_an_error_of_our_own(head: bytes, tmp_path: Path) -> None:
    """Goal: whatever comes is answered with a code of the catalogue. Method: one odd request each."""
    async with ApiWorld(StubParticipant()).serve() as world:
        with capture_logs() as lines:
            answered = await world.exchange(head + b"Connection: close\r\n\r\n", close=False)
    status, code = status_and_code(answered)
    assert (400 <= status < 500 and code) or status == 200
    assert not [line for line in lines if line["log_level"] == "error"]


async def test_a_key_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    """Goal: nobody judges one value and logs another. Method: a signed submission with its user twice, alone, in a
    batch, and a batch with two lists; nothing reaches the participant."""
    good = encode_submission(make_submission())
    twice = good[:-1] + b',"user_id":"a","user_id":"b"}'
    bodies = {
        "": [twice],
        "/batch": [
            b'{"submissions":[' + twice + b"]}",
            b'{"submissions":[' + good + b'],"submissions":[' + good + b"]}",
        ],
    }
    participant = StubParticipant()
    async with ApiWorld(participant).serve() as world:
        for path, raws in bodies.items():
            for raw in raws:
                head = f"POST /v1/submissions{path} HTTP/1.1\r\nHost: localhost\r\n".encode()
                sent = (
                    head
                    + b"Content-Type: application/json\r\n"
                    + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(raw)
                    + raw
                )
                assert b'"code":"MALFORMED_JSON"' in await world.exchange(sent, close=False)
    assert participant.reached == 0
