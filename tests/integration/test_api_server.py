"""The ledger API over a real HTTP server and a stub participant: verdicts, batches, bounds, HTTP manners."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from pathlib import Path

import aiohttp
import pytest
from msgspec.structs import replace

from ledger_api.client import encode_batch, encode_submission
from ledger_api.server import replies
from ledger_api.wire.answers import NotarisedDocument
from replica.notary.answers import Answer, Notarised, NotNow, Refused
from replica.notary.receipts import ReceiptDocument, receipt_from_document, verify_receipt
from replica.notary.requests import Submission
from replica.notary.rules import Conflict, Usage
from tests.waiting import eventually
from tests.worlds.api_world import (
    ACTIVE,
    NOTARY_KEY,
    OFFSET,
    PASSIVE,
    ApiWorld,
    StubParticipant,
    make_submission,
    notarise,
)

JSON = {"Content-Type": "application/json"}
NOTARY_PUBLIC_KEY = bytes(NOTARY_KEY.verify_key)


def head(body: bytes, *more: bytes, version: bytes = b"1.1") -> bytes:
    """A raw POST of one submission."""
    lines = [b"POST /v1/submissions HTTP/" + version, b"Host: localhost", b"Content-Type: application/json", *more]
    return b"\r\n".join([*lines, b"Content-Length: %d" % len(body), b"", body])


async def test_a_success_carries_a_receipt_that_verifies(tmp_path: Path) -> None:
    """Goal: the answer to a submission proves it. Method: submit, read the JSON, verify with the public key only."""
    participant, submission = StubParticipant(), make_submission()
    async with ApiWorld(participant).serve() as world, aiohttp.ClientSession() as session:
        url = world.endpoint + "/v1/submissions"
        async with session.post(url, data=encode_submission(submission), headers=JSON) as response:
            document = await response.json()
            assert (response.status, response.content_type) == (200, "application/json")
            assert response.headers["Cache-Control"] == "no-store"
            assert "Date" in response.headers
    assert participant.submitted == [submission]
    assert set(document) == set(NotarisedDocument.__struct_fields__)
    assert (document["status"], document["code"], document["log_offset"]) == (200, "NOTARISED", OFFSET)
    receipt = receipt_from_document(ReceiptDocument(**document["receipt"]))
    assert verify_receipt(receipt, NOTARY_PUBLIC_KEY)
    assert receipt.tx_id == submission.request[32:64]


async def test_left_out_ids_get_their_defaults(tmp_path: Path) -> None:
    """Goal: the smallest document is enough. Method: only the request; look at what reaches the participant."""
    participant, submission = StubParticipant(), make_submission()
    document = {"request": json.loads(encode_submission(submission))["request"]}
    async with ApiWorld(participant).serve() as world, aiohttp.ClientSession() as session:
        for _ in range(2):
            async with session.post(world.endpoint + "/v1/submissions", json=document) as response:
                assert response.status == 200
    first, second = participant.submitted
    assert (first.user_id, first.command_id) == ("anonymous", submission.request[32:64].hex())
    assert first.act_as == submission.act_as
    assert first.request == submission.request
    assert re.fullmatch("[0-9a-f]{32}", first.submission_id)
    assert first.submission_id != second.submission_id


STATE, HASH = bytes(range(36)), b"\x11" * 32
VERDICTS: dict[str, tuple[Answer, int, dict[str, object], str | None]] = {
    "conflict": (
        Refused("STATE_CONFLICT", HASH, 5, (Conflict(STATE, HASH, Usage.REFERENCE),)),
        409,
        {
            "code": "STATE_CONFLICT",
            "retry": "no",
            "tx_id": HASH.hex(),
            "record_offset": 5,
            "conflicts": [
                {
                    "state": STATE[:32].hex() + ":" + str(int.from_bytes(STATE[32:], "big")),
                    "consumed_by_hash": HASH.hex(),
                    "usage": "reference",
                }
            ],
        },
        None,
    ),
    "reused id": (Refused("TX_ID_REUSED", HASH, 5), 409, {"code": "TX_ID_REUSED", "retry": "no"}, None),
    "window": (
        Refused("TIME_WINDOW_CLOSED", HASH, 5, (), 1_767_225_600_000_001),
        422,
        {"code": "TIME_WINDOW_CLOSED", "judged_at": "2026-01-01T00:00:00.000001Z"},
        None,
    ),
    "command reused": (Refused("COMMAND_ID_REUSED", HASH), 409, {"code": "COMMAND_ID_REUSED", "retry": "no"}, None),
    "in flight": (
        NotNow("SUBMISSION_IN_FLIGHT", "wait", 0.3),
        409,
        {"code": "SUBMISSION_IN_FLIGHT", "retry": "same", "retry_after_s": 0.3},
        "1",
    ),
    "overloaded": (
        NotNow("OVERLOADED", "wait", 2.2),
        503,
        {"code": "OVERLOADED", "retry": "same", "retry_after_s": 2.2, "detail": "wait"},
        "3",
    ),
    "unknown": (NotNow("OUTCOME_UNKNOWN", "gone", 1.0), 503, {"code": "OUTCOME_UNKNOWN", "retry": "same"}, "1"),
}


@pytest.mark.parametrize("case", VERDICTS)
async def test_verdicts_have_their_status_and_code(tmp_path: Path, case: str) -> None:
    """Goal: every answer of the core is rendered as the catalogue requires. Method: one answer each, alone and in a
    batch."""
    answer, status, expected, retry_after = VERDICTS[case]
    world = ApiWorld(StubParticipant(lambda _: answer))
    async with world.serve(), aiohttp.ClientSession(headers=JSON) as session:
        submissions = [make_submission(), make_submission()]
        url = world.endpoint + "/v1/submissions"
        async with session.post(url, data=encode_submission(submissions[0])) as response:
            problem = await response.json(content_type=None)
            assert (response.status, response.content_type) == (status, "application/problem+json")
            assert response.headers.get("Retry-After") == retry_after
        async with session.post(url + "/batch", data=encode_batch(submissions)) as response:
            results = (await response.json())["results"]
    for document in (problem, *results):
        assert {key: document.get(key) for key in expected} == expected
        assert document["status"] == status
        assert ("retry_after_s" in document) == (retry_after is not None)


async def test_a_batch_is_answered_in_order_and_checked_in_chunks(tmp_path: Path) -> None:
    """Goal: results are in the order of the submissions, whichever chunk they were in. Method: 100, some refused."""
    submissions = [make_submission(inputs_count=1) for _ in range(100)]

    def judge(submission: Submission) -> Answer:
        tx_id = submission.request[32:64]
        return Refused("TX_ID_REUSED", tx_id) if tx_id[0] % 3 == 0 else notarise(submission)

    participant = StubParticipant(judge)
    async with ApiWorld(participant).serve() as world, aiohttp.ClientSession(headers=JSON) as session:
        url = world.endpoint + "/v1/submissions/batch"
        async with session.post(url, data=encode_batch(submissions)) as response:
            results = (await response.json())["results"]
    assert [result["tx_id"] for result in results] == [submission.request[32:64].hex() for submission in submissions]
    assert participant.submitted == submissions
    assert {result["status"] for result in results} == {200, 409}


async def test_look_ups(tmp_path: Path) -> None:
    """Goal: a notarised transaction is answered with a receipt, another is not found. Method: both."""
    participant, submission = StubParticipant(), make_submission()
    tx_id = submission.request[32:64]
    found = notarise(submission)
    assert isinstance(found, Notarised)
    participant.found[tx_id] = found
    async with ApiWorld(participant).serve() as world, aiohttp.ClientSession() as session:
        async with session.get(f"{world.endpoint}/v1/transactions/{tx_id.hex()}?pretty=1") as response:
            document = await response.json()
            assert (response.status, document["tx_id"], document["log_offset"]) == (200, tx_id.hex(), OFFSET)
        async with session.get(f"{world.endpoint}/v1/transactions/{'ab' * 32}") as response:
            document = await response.json(content_type=None)
            assert (response.status, document["code"], document["retry"]) == (404, "TX_NOT_FOUND", "no")


async def test_a_passive_serves_nothing_but_the_notarys_key(tmp_path: Path) -> None:
    """Goal: a passive answers that it is passive, with the epoch, and nothing reaches the link. Method: all calls, good
    and bad."""
    participant = StubParticipant()
    participant.standing = PASSIVE
    async with ApiWorld(participant).serve() as world, aiohttp.ClientSession(headers=JSON) as session:
        body, batch = encode_submission(make_submission()), encode_batch([make_submission()])
        for method, path, data in (
            ("POST", "/v1/submissions", body),
            ("POST", "/v1/submissions", b"not json"),
            ("POST", "/v1/submissions/batch", batch),
            ("GET", "/v1/transactions/" + "ab" * 32, None),
        ):
            async with session.request(method, world.endpoint + path, data=data) as response:
                problem = await response.json(content_type=None)
                assert (response.status, problem["code"]) == (503, "NOT_ACTIVE")
                assert response.headers["Retry-After"] == "1"
                assert problem["retry_after_s"] == PASSIVE.retry_after_s
                assert str(PASSIVE.epoch) in problem["detail"]
        async with session.get(world.endpoint + "/v1/notary") as response:
            document = await response.json()
        assert (document["active"], document["epoch"], document["replica"]) == (False, PASSIVE.epoch, "r1")
        participant.standing = ACTIVE
        async with session.get(world.endpoint + "/v1/notary") as response:
            document = await response.json()
        assert document == {
            "ledger_id": (b"L" * 16).hex(),
            "notary_key": NOTARY_PUBLIC_KEY.hex(),
            "keys": [
                {"public_key": "00" * 32, "until": "2026-01-01T00:00:00Z"},
                {"public_key": NOTARY_PUBLIC_KEY.hex()},
            ],
            "signature_scheme": "ed25519",
            "version": "0.0.0",
            "replica": "r1",
            "active": True,
            "epoch": ACTIVE.epoch,
            "states_max": 9_999,
            "batch_max": 1_000,
            "body_max_bytes": 8 * 2**20,
        }
    assert participant.reached == 0


@pytest.mark.parametrize(
    ("given", "kept"),
    [("order-7/a", True), ("a" * 64, True), ("a" * 65, False), ("a b", False), ("ü", False), ("<x>", False)],
)
async def test_the_correlation_id_is_echoed_or_made(tmp_path: Path, given: str, kept: bool) -> None:
    """Goal: a sane id of the client's is used, another is replaced. Method: header and body of a problem."""
    async with ApiWorld(StubParticipant()).serve() as world, aiohttp.ClientSession() as session:
        url = world.endpoint + "/"
        async with session.get(url, headers={"X-Request-Id": given}) as response:
            problem = await response.json(content_type=None)
            made = response.headers["X-Request-Id"]
            assert problem["request_id"] == made
            assert (made == given) is kept
            assert re.fullmatch(r"[A-Za-z0-9._:/+=-]{1,64}", made)


async def test_an_error_of_our_own_is_told_and_does_not_end_the_server(tmp_path: Path) -> None:
    """Goal: a bug costs one answer, with a code. Method: a participant that raises."""

    def fail(_: Submission) -> Answer:
        raise RuntimeError("a bug")

    participant = StubParticipant(fail)
    async with ApiWorld(participant).serve() as world, aiohttp.ClientSession(headers=JSON) as session:
        url, body = world.endpoint + "/v1/submissions", encode_submission(make_submission())
        async with session.post(url, data=body) as response:
            problem = await response.json(content_type=None)
            assert (response.status, problem["code"], problem["retry"]) == (500, "INTERNAL", "same")
            assert "bug" not in problem["detail"]
        participant.answer = notarise
        async with session.post(url, data=body) as response:
            assert response.status == 200


async def test_what_is_under_way_is_bounded(tmp_path: Path) -> None:
    """Goal: past a caller's half of the bound 503 OVERLOADED at once, with the core's estimate. Method: two held back,
    a third; let go."""
    participant = StubParticipant()
    participant.standing = replace(ACTIVE, estimate_s=3.5)
    participant.gate = asyncio.Event()
    async with ApiWorld(participant, in_flight_max=4, batch_max=2).serve() as world:
        async with aiohttp.ClientSession(headers=JSON) as session, asyncio.TaskGroup() as group:
            url = world.endpoint + "/v1/submissions"

            async def submit() -> int:
                async with session.post(url, data=encode_submission(make_submission())) as response:
                    return response.status

            held = [group.create_task(submit()) for _ in range(2)]
            await eventually(lambda: _holds(participant.reached == 2))
            async with session.post(url, data=encode_submission(make_submission())) as response:
                problem = await response.json(content_type=None)
                assert (response.status, problem["code"]) == (503, "OVERLOADED")
                assert (problem["retry_after_s"], response.headers["Retry-After"]) == (3.5, "4")
            assert world.counts.in_flight == 2
            participant.gate.set()
        assert [task.result() for task in held] == [200, 200]
        assert (participant.reached, world.counts.in_flight) == (2, 0)


async def test_bodies_under_way_are_bounded_together(tmp_path: Path) -> None:
    """Goal: memory for bodies is bounded over all connections. Method: slow bodies set it all aside, then one more."""
    participant = StubParticipant()
    bounds = {"body_max_bytes": 2**20, "bodies_max_bytes": 2 * 2**20, "body_read_max_s": 5.0}
    async with ApiWorld(participant, **bounds).serve() as world:
        slow = head(b"{").replace(b"Length: 1", b"Length: 1048576")
        writers = []
        for _ in range(2):
            _, writer = await asyncio.open_connection("127.0.0.1", world.port)
            writer.write(slow)
            writers.append(writer)
        body = encode_submission(make_submission())

        async def is_refused() -> bool:
            received = await world.exchange(head(body, b"Connection: close"), close=False)
            return b" 503 " in received and b'"code":"OVERLOADED"' in received

        await eventually(is_refused)
        for writer in writers:
            writer.close()

        async def is_served() -> bool:
            return b" 200 " in await world.exchange(head(body, b"Connection: close"), close=False)

        await eventually(is_served)


async def test_a_client_that_does_not_read_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: answers nobody reads do not pile up. Method: large batches down one connection, nothing read."""
    monkeypatch.setattr(replies, "ANSWER_READ_MAX_S", 0.1)
    body = encode_batch([make_submission(inputs_count=0)] * 1_000)
    async with ApiWorld(StubParticipant()).serve() as world:
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        raw.connect(("127.0.0.1", world.port))
        _, writer = await asyncio.open_connection(sock=raw, limit=1)
        writer.write(head(body).replace(b"/submissions", b"/submissions/batch") * 6)
        await eventually(lambda: _holds(len(world.server.connections) == 1))
        await eventually(lambda: _holds(len(world.server.connections) == 0))
        assert sum(world.counts.requests.values()) < 6
        writer.close()


async def test_http_manners(tmp_path: Path) -> None:
    """Goal: HTTP/1.0, pipelining, chunks and Expect work. Method: raw exchanges on one connection each."""
    body = encode_submission(make_submission())
    chunked = (
        b"POST /v1/submissions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json; charset=UTF-8\r\n"
        b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    )
    async with ApiWorld(StubParticipant()).serve() as world:
        received = await world.exchange(head(body, version=b"1.0"), close=False)
        assert received.startswith(b"HTTP/1.1 200 ") and b"Connection: close" in received
        kept = await world.exchange(
            head(body, b"Connection: keep-alive", version=b"1.0") + head(body, version=b"1.0"), close=False
        )
        assert kept.count(b"HTTP/1.1 200 ") == 2 and b"Connection: keep-alive" in kept
        pipelined = await world.exchange(head(body) * 3 + head(body, b"Connection: close"), close=False)
        assert pipelined.count(b"HTTP/1.1 200 ") == 4
        assert (await world.exchange(chunked, close=False)).startswith(b"HTTP/1.1 200 ")
        reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
        writer.write(
            head(b"", b"Expect: 100-continue", b"Connection: close").replace(b"Length: 0", b"Length: %d" % len(body))
        )
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
        writer.close()


async def test_what_is_counted(tmp_path: Path) -> None:
    """Goal: operators see calls by status, answers by code, signature checks and times. Method: one of each kind."""
    participant = StubParticipant()
    async with ApiWorld(participant).serve() as world, aiohttp.ClientSession(headers=JSON) as session:
        good = make_submission()
        bad = json.loads(encode_submission(good))
        bad["request"]["signature"] = "00" * 64
        for path, data in (
            ("/v1/submissions", encode_submission(good)),
            ("/v1/submissions", json.dumps(bad).encode()),
            ("/v1/submissions/batch", encode_batch([good, good, good])),
        ):
            async with session.post(world.endpoint + path, data=data) as response:
                await response.read()
        counts = world.counts
    assert counts.requests == {"/v1/submissions 200": 1, "/v1/submissions 401": 1, "/v1/submissions/batch 200": 1}
    assert counts.answers == {"NOTARISED": 4, "SIGNATURE_INVALID": 1}
    assert (counts.signatures_good, counts.signatures_bad, counts.in_flight) == (4, 1, 0)
    assert sum(counts.latency["/v1/submissions"].buckets) == 2


async def _holds(what: bool) -> bool:
    return what
