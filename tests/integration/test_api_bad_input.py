"""Bad input against the real HTTP server: each case has its status and code, and nothing of it reaches the link."""

from __future__ import annotations

import asyncio
import copy
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from ledger_api.client import encode_batch, encode_submission
from replica.notary.answers import Refused
from replica.notary.codes import Code
from replica.notary.requests import format_state_ref
from tests.worlds.api_world import ApiWorld, StubParticipant, make_submission, notarise

Document = dict[str, Any]
SUBMISSION: Document = json.loads(encode_submission(make_submission()))
STATE = format_state_ref(os.urandom(36))
BODY_MAX = 2**20


def request_with(**fields: object) -> Callable[[Document], None]:
    return lambda document: document["request"].update(fields)


def with_(**fields: object) -> Callable[[Document], None]:
    return lambda document: document.update(fields)


def states(count: int) -> list[str]:
    return [f"{number:064x}:0" for number in range(count)]


CHANGES: dict[str, tuple[Callable[[Document], object], int, str]] = {
    "no request": (lambda d: d.pop("request"), 400, "MALFORMED_JSON"),
    "no ledger id": (lambda d: d["request"].pop("ledger_id"), 400, "MALFORMED_JSON"),
    "no transaction id": (lambda d: d["request"].pop("tx_id"), 400, "MALFORMED_JSON"),
    "no inputs field": (lambda d: d["request"].pop("inputs"), 400, "MALFORMED_JSON"),
    "no signature": (lambda d: d["request"].pop("signature"), 400, "MALFORMED_JSON"),
    "unknown field": (with_(priority=1), 400, "MALFORMED_JSON"),
    "unknown field in the request": (request_with(outputs=2), 400, "MALFORMED_JSON"),
    "unknown field in the window": (
        request_with(time_window={"from": "2026-01-01T00:00:00Z", "to": "x"}),
        400,
        "MALFORMED_JSON",
    ),
    "inputs as text": (request_with(inputs=STATE), 400, "MALFORMED_JSON"),
    "input as a number": (request_with(inputs=[1]), 400, "MALFORMED_JSON"),
    "inputs null": (request_with(inputs=None), 400, "MALFORMED_JSON"),
    "ledger id too short": (request_with(ledger_id="4c" * 15), 400, "MALFORMED_REQUEST"),
    "ledger id no hexadecimal": (request_with(ledger_id="xy" * 16), 400, "MALFORMED_REQUEST"),
    "another ledger": (request_with(ledger_id="4d" * 16), 400, "WRONG_LEDGER"),
    "transaction id of a kind to come": (request_with(tx_id=(b"a" * 24 + b"/derived").hex()), 400, "MALFORMED_REQUEST"),
    "transaction id too short": (request_with(tx_id="ab" * 31), 400, "MALFORMED_REQUEST"),
    "transaction id too long": (request_with(tx_id="ab" * 33), 400, "MALFORMED_REQUEST"),
    "transaction id no hexadecimal": (request_with(tx_id="xy" * 32), 400, "MALFORMED_REQUEST"),
    "transaction id with spaces": (request_with(tx_id="ab " * 21 + "a"), 400, "MALFORMED_REQUEST"),
    "state without an index": (request_with(inputs=["ab" * 32]), 400, "MALFORMED_REQUEST"),
    "state id too short": (request_with(inputs=["ab" * 31 + ":0"]), 400, "MALFORMED_REQUEST"),
    "state id with spaces": (request_with(inputs=["ab " * 21 + "a:0"]), 400, "MALFORMED_REQUEST"),
    "negative index": (request_with(inputs=["ab" * 32 + ":-1"]), 400, "MALFORMED_REQUEST"),
    "index too large": (request_with(inputs=["ab" * 32 + ":4294967296"]), 400, "MALFORMED_REQUEST"),
    "index no number": (request_with(inputs=["ab" * 32 + ":x"]), 400, "MALFORMED_REQUEST"),
    "index in other digits": (request_with(inputs=["ab" * 32 + ":١"]), 400, "MALFORMED_REQUEST"),
    "duplicate input": (request_with(inputs=[STATE, STATE]), 400, "MALFORMED_REQUEST"),
    "duplicate input in two spellings": (request_with(inputs=[STATE, STATE.upper()]), 400, "MALFORMED_REQUEST"),
    "duplicate reference": (request_with(references=[STATE, STATE]), 400, "MALFORMED_REQUEST"),
    "input and reference overlap": (request_with(inputs=[STATE], references=[STATE]), 400, "MALFORMED_REQUEST"),
    "10,000 inputs": (request_with(inputs=states(10_000)), 400, "TOO_MANY_STATES"),
    "10,000 states together": (request_with(inputs=states(9_999), references=[STATE]), 400, "TOO_MANY_STATES"),
    "window without ends": (request_with(time_window={}), 400, "MALFORMED_REQUEST"),
    "window turned round": (
        request_with(time_window={"from": "2026-01-02T00:00:00Z", "until": "2026-01-01T00:00:00Z"}),
        400,
        "MALFORMED_REQUEST",
    ),
    "window empty": (
        request_with(time_window={"from": "2026-01-01T00:00:00Z", "until": "2026-01-01T00:00:00Z"}),
        400,
        "MALFORMED_REQUEST",
    ),
    "window before 1970": (request_with(time_window={"from": "1969-12-31T23:59:59Z"}), 400, "MALFORMED_REQUEST"),
    "window without a zone": (request_with(time_window={"from": "2026-01-01T00:00:00"}), 400, "MALFORMED_JSON"),
    "window as a number": (request_with(time_window={"from": 1}), 400, "MALFORMED_JSON"),
    "party empty": (request_with(party=""), 400, "MALFORMED_REQUEST"),
    "party too long": (request_with(party="O=" + "a" * 511), 400, "MALFORMED_REQUEST"),
    "party with a control character": (request_with(party="O=Bank\nA"), 400, "MALFORMED_REQUEST"),
    "party with a lone surrogate": (request_with(party="O=\ud800"), 400, "MALFORMED_JSON"),
    "public key too short": (request_with(public_key="ab" * 31), 400, "MALFORMED_REQUEST"),
    "public key with spaces": (request_with(public_key="ab " * 21 + "a"), 400, "MALFORMED_REQUEST"),
    "signature too long": (request_with(signature="ab" * 65), 400, "MALFORMED_REQUEST"),
    "signature no hexadecimal": (request_with(signature="zz" * 64), 400, "MALFORMED_REQUEST"),
    "signature wrong": (request_with(signature="00" * 64), 401, "SIGNATURE_INVALID"),
    "signature of another request": (
        request_with(signature=json.loads(encode_submission(make_submission()))["request"]["signature"]),
        401,
        "SIGNATURE_INVALID",
    ),
    "signed, then another transaction id": (request_with(tx_id="ab" * 32), 401, "SIGNATURE_INVALID"),
    "signed, then another input": (request_with(inputs=[STATE]), 401, "SIGNATURE_INVALID"),
    "signed, then a reference": (request_with(references=[STATE]), 401, "SIGNATURE_INVALID"),
    "signed, then a window": (request_with(time_window={"until": "2099-01-01T00:00:00Z"}), 401, "SIGNATURE_INVALID"),
    "signed, then another spelling of the party": (
        request_with(party="O=Bank A, L=London, C=GB"),
        401,
        "SIGNATURE_INVALID",
    ),
    "command id empty": (with_(command_id=""), 400, "MALFORMED_REQUEST"),
    "command id too long": (with_(command_id="a" * 256), 400, "MALFORMED_REQUEST"),
    "command id with a control character": (with_(command_id="a\x00b"), 400, "MALFORMED_REQUEST"),
    "command id that turns the text round": (with_(command_id="a\u202eb"), 400, "MALFORMED_REQUEST"),
    "user id empty": (with_(user_id=""), 400, "MALFORMED_REQUEST"),
    "user id a number": (with_(user_id=7), 400, "MALFORMED_JSON"),
    "submission id too long": (with_(submission_id="ü" * 128), 400, "MALFORMED_REQUEST"),
    "act_as empty": (with_(act_as=[]), 400, "MALFORMED_REQUEST"),
    "act_as too many": (with_(act_as=[f"O={n}" for n in range(17)]), 400, "MALFORMED_REQUEST"),
    "act_as twice the same": (with_(act_as=["O=A", "O=A"]), 400, "MALFORMED_REQUEST"),
}

RAW: dict[str, tuple[bytes, int, str]] = {
    "empty body": (b"", 400, "MALFORMED_JSON"),
    "no JSON": (b"not json", 400, "MALFORMED_JSON"),
    "cut short": (json.dumps(SUBMISSION).encode()[:-1], 400, "MALFORMED_JSON"),
    "two documents": (json.dumps(SUBMISSION).encode() * 2, 400, "MALFORMED_JSON"),
    "a list": (b"[]", 400, "MALFORMED_JSON"),
    "null": (b"null", 400, "MALFORMED_JSON"),
    "a byte order mark": (b"\xef\xbb\xbf" + json.dumps(SUBMISSION).encode(), 400, "MALFORMED_JSON"),
    "no UTF-8": (json.dumps(SUBMISSION).encode().replace(b"O=Bank", b"O=\xff\xfe"), 400, "MALFORMED_JSON"),
    "UTF-16": (json.dumps(SUBMISSION).encode("utf-16"), 400, "MALFORMED_JSON"),
    "nested deep": (b'{"request":' * 50_000, 400, "MALFORMED_JSON"),
    "lists nested deep": (b'{"act_as":' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400, "MALFORMED_JSON"),
    "NaN": (b'{"user_id":NaN}', 400, "MALFORMED_JSON"),
    "a huge integer": (b'{"user_id":' + b"9" * 100_000 + b"}", 400, "MALFORMED_JSON"),
    "a huge exponent": (b'{"user_id":1e999999}', 400, "MALFORMED_JSON"),
    "oversize": (b" " * (BODY_MAX + 1), 413, "BODY_TOO_LARGE"),
}

BATCHES: dict[str, tuple[bytes, int, str]] = {
    "empty batch": (b'{"submissions":[]}', 400, "EMPTY_BATCH"),
    "over-large batch": (b'{"submissions":[' + b"{}," * 10 + b"{}]}", 400, "BATCH_TOO_LARGE"),
    "no list": (b'{"submissions":{}}', 400, "MALFORMED_JSON"),
    "a bare list": (b"[{}]", 400, "MALFORMED_JSON"),
    "unknown field beside the list": (b'{"submissions":[{}],"atomic":true}', 400, "MALFORMED_JSON"),
    "an item cut short": (b'{"submissions":[{]}', 400, "MALFORMED_JSON"),
    "items nested deep": (b'{"submissions":[' + b"[" * 100_000 + b"]" * 100_000 + b"]}", 400, "MALFORMED_JSON"),
}


async def post(world: ApiWorld, path: str, body: bytes, **headers: str) -> tuple[int, Document]:
    """Status and problem document; checks what every problem has."""
    async with aiohttp.ClientSession() as session:
        sent = {"Content-Type": "application/json", **headers}
        async with session.post(world.endpoint + path, data=io.BytesIO(body), headers=sent) as response:
            problem = await response.json(content_type=None)
            if response.status != 200:
                assert response.content_type == "application/problem+json"
                assert problem["status"] == response.status
                assert problem["type"] == f"urn:notary:problem:{problem['code']}"
                assert problem["request_id"] == response.headers["X-Request-Id"]
                assert problem["title"] and problem["detail"] and problem["remedy"]
                assert problem["retry"] in ("no", "same")
            return response.status, problem


@pytest.mark.parametrize("case", CHANGES)
@pytest.mark.parametrize("in_batch", [False, True], ids=["alone", "in a batch"])
async def test_bad_submissions(tmp_path: Path, case: str, in_batch: bool) -> None:
    """Goal: each fault has its status and code, alone and as one of a batch whose good items are still served."""
    change, status, code = CHANGES[case]
    document = copy.deepcopy(SUBMISSION)
    change(document)
    participant = StubParticipant()
    async with ApiWorld(participant, body_max_bytes=2 * BODY_MAX).serve() as world:
        if not in_batch:
            got, problem = await post(world, "/v1/submissions", json.dumps(document).encode())
            assert (got, problem["code"]) == (status, code)
            assert participant.reached == 0
            return
        body = json.dumps({"submissions": [SUBMISSION, document, SUBMISSION]}).encode()
        got, answer = await post(world, "/v1/submissions/batch", body)
        if case == "party with a lone surrogate":  # breaks the JSON of the whole batch, not the item's
            assert (got, answer["code"], participant.reached) == (status, code, 0)
            return
        assert got == 200
        assert [(item["status"], item["code"]) for item in answer["results"]] == [
            (200, "NOTARISED"),
            (status, code),
            (200, "NOTARISED"),
        ]
        assert participant.reached == 2


@pytest.mark.parametrize("case", RAW)
async def test_bodies_that_are_no_submission(tmp_path: Path, case: str) -> None:
    """Goal: whatever bytes come, the answer is a 4xx with a code. Method: one raw body each."""
    body, status, code = RAW[case]
    participant = StubParticipant()
    async with ApiWorld(participant, body_max_bytes=BODY_MAX).serve() as world:
        for path in ("/v1/submissions", "/v1/submissions/batch"):
            got, problem = await post(world, path, body)
            assert (got, problem["code"]) == (status, code)
    assert participant.reached == 0


@pytest.mark.parametrize("case", BATCHES)
async def test_bad_batches(tmp_path: Path, case: str) -> None:
    """Goal: a batch that cannot be read as one is refused whole. Method: one raw body each."""
    body, status, code = BATCHES[case]
    participant = StubParticipant()
    async with ApiWorld(participant, batch_max=10).serve() as world:
        got, problem = await post(world, "/v1/submissions/batch", body)
        assert (got, problem["code"]) == (status, code)
    assert participant.reached == 0


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "application/json; charset=latin-1"},
        {"Content-Type": "application/jsonl"},
        {"Content-Type": ""},
        {"Content-Encoding": "gzip"},
    ],
    ids=str,
)
async def test_other_media_types_are_refused(tmp_path: Path, headers: dict[str, str]) -> None:
    """Goal: no guessing, and no decompression bombs. Method: a good body under each header."""
    participant = StubParticipant()
    async with ApiWorld(participant).serve() as world:
        got, problem = await post(world, "/v1/submissions", encode_submission(make_submission()), **headers)
        assert (got, problem["code"]) == (415, "MEDIA_TYPE_UNSUPPORTED")
    assert participant.reached == 0


@pytest.mark.parametrize(
    ("method", "path", "status", "code", "allow"),
    [
        ("GET", "/v1/submissions", 405, "METHOD_NOT_ALLOWED", "POST"),
        ("PUT", "/v1/submissions/batch", 405, "METHOD_NOT_ALLOWED", "POST"),
        ("DELETE", "/v1/transactions/" + "ab" * 32, 405, "METHOD_NOT_ALLOWED", "GET"),
        ("POST", "/v1/notary", 405, "METHOD_NOT_ALLOWED", "GET"),
        ("GET", "/", 404, "ROUTE_NOT_FOUND", None),
        ("POST", "/v1/submissions/", 404, "ROUTE_NOT_FOUND", None),
        ("POST", "/v2/submissions", 404, "ROUTE_NOT_FOUND", None),
        ("GET", "/v1/../etc/passwd", 404, "ROUTE_NOT_FOUND", None),
        ("GET", "/v1/transactions/", 400, "MALFORMED_REQUEST", None),
        ("GET", "/v1/transactions/abc", 400, "MALFORMED_REQUEST", None),
        ("GET", "/v1/transactions/" + "zz" * 32, 400, "MALFORMED_REQUEST", None),
        ("GET", "/v1/transactions/" + "ab" * 32 + "/x", 404, "ROUTE_NOT_FOUND", None),
    ],
)
async def test_wrong_methods_and_paths(
    tmp_path: Path, method: str, path: str, status: int, code: str, allow: str | None
) -> None:
    """Goal: each has its code, and names what is allowed. Method: one call each."""
    participant = StubParticipant()
    async with ApiWorld(participant).serve() as world, aiohttp.ClientSession() as session:
        async with session.request(method, world.endpoint + path) as response:
            problem = await response.json(content_type=None)
            assert (response.status, problem["code"]) == (status, code)
            assert response.headers.get("Allow") == allow
        async with session.head(world.endpoint + path) as response:
            assert response.status in (400, 404, 405)
            assert await response.read() == b""
    assert participant.reached == 0


HTTP: dict[str, tuple[bytes, bytes, bytes]] = {
    "no HTTP": (b"hello there\r\n\r\n", b"400", b"HTTP_MALFORMED"),
    "a TLS greeting": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 64, b"400", b"HTTP_MALFORMED"),
    "a request line too long": (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n", b"400", b"HTTP_MALFORMED"),
    "a header too long": (
        b"GET / HTTP/1.1\r\nHost: localhost\r\nA: " + b"a" * 20_000 + b"\r\n\r\n",
        b"400",
        b"HTTP_MALFORMED",
    ),
    "too many headers": (
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 200 + b"\r\n",
        b"400",
        b"HTTP_MALFORMED",
    ),
    "length and chunks together": (
        b"POST /v1/submissions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"400",
        b"HTTP_MALFORMED",
    ),
    "two lengths": (
        b"POST /v1/submissions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"400",
        b"HTTP_MALFORMED",
    ),
    "a negative length": (
        b"POST /v1/submissions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"400",
        b"HTTP_MALFORMED",
    ),
    "broken chunks": (
        b"POST /v1/submissions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"400",
        b"HTTP_MALFORMED",
    ),
    "chunks without an end": (
        b"POST /v1/submissions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n" + (b"10000\r\n" + b" " * 0x10000 + b"\r\n") * 17,
        b"413",
        b"BODY_TOO_LARGE",
    ),
    "a length that is too large, and no body": (
        b"POST /v1/submissions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
        b"Content-Length: 99999999999\r\n\r\n",
        b"413",
        b"BODY_TOO_LARGE",
    ),
    "a body that does not come": (
        b"POST /v1/submissions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
        b'Content-Length: 100\r\n\r\n{"request":',
        b"408",
        b"BODY_TOO_SLOW",
    ),
}


@pytest.mark.parametrize("case", HTTP)
async def test_bad_http(tmp_path: Path, case: str) -> None:
    """Goal: a broken, slow or hostile HTTP client gets a problem document, quickly. Method: raw bytes on a socket."""
    sent, status, code = HTTP[case]
    participant = StubParticipant()
    async with ApiWorld(participant, body_max_bytes=BODY_MAX, body_read_max_s=0.2).serve() as world:
        async with asyncio.timeout(5):
            received = await world.exchange(sent, close=False)
    assert received.startswith(b"HTTP/1.1 " + status)
    assert b'"code":"' + code + b'"' in received
    assert participant.reached == 0


async def test_a_connection_that_sends_nothing_whole_is_closed(tmp_path: Path) -> None:
    """Goal: slow clients do not hold connections for ever. Method: half a head, nothing, and a short idle limit."""
    participant = StubParticipant()
    async with ApiWorld(participant, idle_max_s=0.2).serve() as world:
        async with asyncio.timeout(5):
            for sent in (b"", b"POST /v1/submissions HTTP/1.1\r\nHost: localhost\r\nContent-"):
                assert await world.exchange(sent, close=False) == b""
    assert participant.reached == 0


async def test_an_answer_that_cannot_be_told_costs_the_others_nothing(tmp_path: Path) -> None:
    """Goal: what is decided is never answered as refused, nor lost with another's answer. Method: one of three answers
    has a time that no JSON has; alone and in a batch."""
    batch = [make_submission() for _ in range(3)]
    odd = Refused(Code.TIME_WINDOW_CLOSED.name, bytes(32), 1, judged_us=2**62)
    participant = StubParticipant(lambda one: odd if one == batch[1] else notarise(one))
    async with ApiWorld(participant).serve() as world:
        got, document = await post(world, "/v1/submissions/batch", encode_batch(batch))
        codes = [result["code"] for result in document["results"]]
        assert (got, codes) == (200, ["NOTARISED", "OUTCOME_UNKNOWN", "NOTARISED"])
        got, problem = await post(world, "/v1/submissions", encode_submission(batch[1]))
        assert (got, problem["code"]) == (503, "OUTCOME_UNKNOWN")


@pytest.mark.parametrize("text", ["\\ud800", "\\ud800a", "a\\udc00"])
async def test_half_of_a_surrogate_pair_is_called_so(tmp_path: Path, text: str) -> None:
    """Goal: our own sentence, not that the input ended. Method: at the end of a text, within one, the second half;
    where hardly anything follows."""
    others = {name: value for name, value in SUBMISSION.items() if name != "command_id"}
    raw = json.dumps({**others, "command_id": "ID"}).replace('"ID"', f'"{text}"').encode()
    async with ApiWorld(StubParticipant()).serve() as world:
        got, problem = await post(world, "/v1/submissions", raw)
    assert (got, problem["code"]) == (400, "MALFORMED_JSON")
    assert "half of a surrogate pair" in problem["detail"]
