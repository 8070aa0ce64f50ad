"""docs/api.md: every exchange on the page is made with a real server, and every table is compared with the code."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ledger_api.client import Party
from ledger_api.server.settings import ApiSettings
from replica.notary.answers import Answer, Notarised, Refused
from replica.notary.errors import Code
from replica.notary.requests import Submission, parse_tx_id
from replica.notary.rules import Conflict, Usage, hash_of_tx_id
from tests.api_world import ACTIVE, BANK, NOTARY_KEY, PASSIVE, ApiWorld, StubParticipant, notarise

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


def judge(submission: Submission) -> Answer:
    """The state of the page's examples: one transaction took the input, any other conflicts with it."""
    tx_id = submission.request[16:48]
    if tx_id == WINNER:
        return notarise(submission)
    conflict = Conflict(submission.request[52:88], hash_of_tx_id(WINNER), Usage.INPUT)
    return Refused(Code.STATE_CONFLICT.name, tx_id, 42, (conflict,))


async def exchange(folder: Path, request: Message, *, passive: bool) -> tuple[Message, Any]:
    """Make a request of the page, and read the answer and its JSON."""
    participant = StubParticipant(judge)
    participant.standing = PASSIVE if passive else ACTIVE
    body = request.body.encode()
    headers = {"Host": "notary", "Connection": "close", "Content-Length": str(len(body)), **request.headers}
    raw = "\r\n".join([request.start, *(f"{name}: {value}" for name, value in headers.items()), "", ""]).encode() + body
    async with ApiWorld(folder, participant).serve() as world:
        received = await world.exchange(raw, close=False)
    answer = parse(received.decode().replace("\r\n", "\n"))
    return answer, json.loads(answer.body)


@pytest.mark.parametrize(("request_", "answer"), EXCHANGES, ids=[request.start for request, _ in EXCHANGES])
async def test_the_exchanges_on_the_page_are_real(tmp_path: Path, request_: Message, answer: Message) -> None:
    """Goal: a reader can copy from the page. Method: send each request, compare start line, headers and JSON."""
    given, document = await exchange(tmp_path, request_, passive="503" in answer.start)
    assert given.start == answer.start
    assert {name: given.headers[name] for name in answer.headers} == answer.headers
    assert document == json.loads(answer.body)


def test_the_page_has_the_exchanges() -> None:
    """Goal: the test above cannot pass by finding nothing. Method: count."""
    assert len(EXCHANGES) == 6


async def test_the_python_on_the_page_runs(tmp_path: Path) -> None:
    """Goal: the client example works as printed. Method: run it against a server, with each kind of answer."""
    (source,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(source, "docs/api.md", "exec"), names)
    notary_key, state = bytes(NOTARY_KEY.verify_key), "ab" * 32 + ":0"
    participant = StubParticipant()
    async with ApiWorld(tmp_path, participant).serve() as world:
        assert await names["pay"](world.endpoint, BANK, notary_key, state) == "notarised at offset 41"
        participant.answer = judge
        assert "STATE_CONFLICT" in await names["pay"](world.endpoint, BANK, notary_key, state)
        stranger = Party("O=Nobody")
        assert "not registered" in await names["pay"](world.endpoint, stranger, notary_key, state)
    assert isinstance(notarise(BANK.sign(bytes(32))), Notarised)


def test_the_table_of_codes_is_complete() -> None:
    """Goal: no code an application can meet is missing or told wrongly. Method: compare with the catalogue."""
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \| (\w+) \| (.+) \|$", PAGE, re.MULTILINE)
    expected = {(code.name, str(code.status), code.retry.value, code.title) for code in Code if code.status}
    assert set(rows) == expected


def test_the_table_of_settings_is_complete() -> None:
    """Goal: the same for the settings. Method: compare with the model."""
    rows = re.findall(r"^\| `(\w+)` \| `([^`]+)` \| (.+) \|$", PAGE, re.MULTILINE)
    expected = {
        (name, "required" if field.is_required() else str(field.default), field.description)
        for name, field in ApiSettings.model_fields.items()
    }
    assert set(rows) == expected
