"""docs/api.md: every exchange on the page is made with a real server."""

from __future__ import annotations

import asyncio
import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from replica.notary.answers import Answer, Notarised, Refused, StateStatus
from replica.notary.codes import Code
from replica.notary.receipts import Receipt
from replica.notary.requests import Submission, parse_state_ref, parse_tx_id
from replica.notary.rules import Conflict, Usage, hash_of_tx_id
from replica.store.interface import NOTARISED, Completion
from tests.worlds.api_world import ACTIVE, PASSIVE, ApiWorld, StubParticipant, notarise

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
WINNER = parse_tx_id("a89cbd0b1e052bc7a4c08abf43939e375327a6c35d08fba8f8239f693b8f10d9")


class Message(NamedTuple):
    """An HTTP message on the page."""

    start: str
    headers: dict[str, str]
    body: str


def parse(block: str) -> Message:
    head, _, body = block.partition("\n\n")
    start, *lines = head.strip().split("\n")
    return Message(start, dict(line.split(": ", 1) for line in lines), body.strip())


MESSAGES = [parse(block) for block in re.findall(r"```http\n(.*?)```", PAGE, re.DOTALL)]
EXCHANGES = [
    (request, answer)
    for request, answer in pairwise(MESSAGES)
    if not request.start.startswith("HTTP") and answer.start.startswith("HTTP")
]


PARTIES = ("O=Bank A,L=London,C=GB",)
DIGEST = bytes.fromhex("1c071085d558bf121abe501e3cc24860a026e603937d5915b259026171d63912")
STATE = parse_state_ref("7547ffaca5f21a3a9bbe8eac380a98fda5bbd58cdbe5774c1fbb4ad4255112d6:1")
LOSER = parse_tx_id("beb5e45eadcd4acff887a0e3628ad91bd9470b41179a10c0b6d98d0e4c2a38ad")
REFUSAL = msgspec.msgpack.encode((Conflict(STATE, hash_of_tx_id(WINNER), Usage.INPUT),))
RECEIPT = Receipt(WINNER, DIGEST, 0, 1, (), bytes(32), bytes(64), 2)
SERVING = msgspec.structs.replace(ACTIVE, ledger_end=3)


def completion(log_offset: int, tx_id: bytes, command: str, user: str = "treasury", detail: bytes = b"") -> Completion:
    """A row of the page's ledger."""
    outcome, notarised_offset = (Code.STATE_CONFLICT.name, None) if detail else (NOTARISED, 41)
    time_us = 1767323045_000006 + (log_offset - 41) // 2
    return Completion(
        log_offset,
        DIGEST,
        user,
        command,
        PARTIES,
        f"{command}/1",
        tx_id,
        DIGEST,
        outcome,
        notarised_offset,
        time_us,
        detail,
        604_800_000_000,
    )


COMPLETIONS = [
    completion(41, WINNER, "payment-17"),
    completion(42, WINNER, "payment-17", user="audit"),
    completion(43, LOSER, "payment-18", detail=REFUSAL),
]


def judge(submission: Submission) -> Answer:
    """The state of the page's examples: one transaction took the input, any other conflicts with it."""
    tx_id = submission.request[32:64]
    if tx_id == WINNER:
        return msgspec.structs.replace(notarise(submission), ledger_offset=1)
    conflict = Conflict(submission.request[70:106], hash_of_tx_id(WINNER), Usage.INPUT)
    return Refused(Code.STATE_CONFLICT.name, tx_id, 42, (conflict,), ledger_offset=2)


async def exchange(folder: Path, request: Message) -> tuple[Message, Any]:
    """Make a request of the page, and read the answer and its JSON."""
    participant = StubParticipant(judge)
    participant.database.completions = list(enumerate(COMPLETIONS, 1))
    participant.consumed[STATE] = StateStatus(STATE, WINNER, 41)
    if "/status" in request.start:
        participant.found[WINNER] = Notarised(WINNER, DIGEST, 41, None, False, RECEIPT)
    participant.standing = SERVING
    body = request.body.encode()
    headers = {"Host": "localhost", "Connection": "close", "Content-Length": str(len(body)), **request.headers}
    raw = "\r\n".join([request.start, *(f"{name}: {value}" for name, value in headers.items()), "", ""]).encode() + body
    async with ApiWorld(participant).serve() as world:
        received = await world.exchange(raw, close=False)
    answer = parse(received.decode().replace("\r\n", "\n"))
    return answer, json.loads(answer.body)


@pytest.mark.parametrize(("request_", "answer"), EXCHANGES, ids=[request.start for request, _ in EXCHANGES])
async def test_the_exchanges_on_the_page_are_real(tmp_path: Path, request_: Message, answer: Message) -> None:
    """Goal: a reader can copy from the page. Method: send each request, compare start line, headers and JSON."""
    given, document = await exchange(tmp_path, request_)
    assert given.start == answer.start
    assert {name: given.headers[name] for name in answer.headers} == answer.headers
    assert document == json.loads(answer.body)


async def test_the_stream_on_the_page_is_real(tmp_path: Path) -> None:
    """Goal: the same for a stream. Method: read on behind offset 2, be idle for a moment, step down."""
    (expected,) = re.findall(r"```ndjson\n(.*?)```", PAGE, re.DOTALL)
    participant = StubParticipant(judge)
    participant.database.completions = list(enumerate(COMPLETIONS, 1))
    participant.standing = SERVING
    async with ApiWorld(participant, checkpoint_s=0.05).serve() as world:
        reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
        path = "/v1/completions?after=2&follow=true"
        writer.write(f"GET {path} HTTP/1.0\r\nX-Request-Id: example-9\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
        lines = [await reader.readline() for _ in range(2)]
        participant.standing = PASSIVE
        participant.standing_changes.notify()
        rest = await reader.read()
        writer.close()
    assert "".join(line.decode() for line in (*lines, rest.splitlines(keepends=True)[-1])) == expected


def test_the_page_has_the_exchanges() -> None:
    """Goal: the test above cannot pass by finding nothing. Method: count."""
    assert len(EXCHANGES) == 6
