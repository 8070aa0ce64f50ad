"""Interim estimates on plain HTTP, and asynchronous batches, against a real server."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import aiohttp

from ledger_api.client import NotaryClient, RetryPolicy, certifies, encode_batch, encode_submission
from replica.checker.history import HistoryWriter, Ok, read_history
from replica.link.interface import DEFAULT_OPTIONS, SubmitOptions
from replica.local.recording import RecordingClient
from replica.notary.answers import Answer, Notarised, NotNow, Refused
from replica.notary.requests import Submission
from tests.worlds.api_world import NOTARY_KEY, ApiWorld, StubParticipant, make_submission, notarise

JSON = {"Content-Type": "application/json"}
LINES = {**JSON, "Accept": "application/x-ndjson"}
NOTARY_PUBLIC_KEY = bytes(NOTARY_KEY.verify_key)


class Telling(StubParticipant):
    """Sends estimates before it answers."""

    def __init__(self, *estimates_s: float, answer: Callable[[Submission], Answer] = notarise) -> None:
        super().__init__(answer)
        self.estimates_s = estimates_s
        self.pause_s = 0.0

    async def submit(
        self,
        submissions: Sequence[Submission],
        options: SubmitOptions = DEFAULT_OPTIONS,
        on_wait: Callable[[float], None] | None = None,
    ) -> list[Answer]:
        for estimate_s in self.estimates_s:
            if on_wait is not None:
                on_wait(estimate_s)
            await asyncio.sleep(self.pause_s)
        return await super().submit(submissions, options, on_wait)


async def post(session: aiohttp.ClientSession, url: str, body: bytes, headers: dict[str, str]) -> tuple[str, list[str]]:
    """Media type and lines of an answer with status 200."""
    async with session.post(url, data=body, headers=headers) as response:
        assert response.status == 200
        return response.content_type, (await response.text()).splitlines()


async def test_a_long_wait_is_told_before_the_answer(tmp_path: Path) -> None:
    """Goal: a caller of plain HTTP learns that it will wait. Method: two estimates; the second one ends earlier."""
    async with ApiWorld(Telling(20.0, 12.0, 40.0)).serve() as world, aiohttp.ClientSession() as session:
        one, url = make_submission(), world.endpoint + "/v1/submissions"
        for _ in range(2):  # the connection is still good behind such an answer
            kind, lines = await post(session, url, encode_submission(one), LINES)
            assert kind == "application/x-ndjson"
            *waits, answer = map(json.loads, lines)
            assert waits == [{"kind": "wait", "estimate_s": 20.0}, {"kind": "wait", "estimate_s": 40.0}]
            assert (answer["status"], answer["code"]) == (200, "NOTARISED")
        assert len(world.server.connections) == 1
        kind, (line,) = await post(session, url, encode_submission(one), JSON)
        assert (kind, json.loads(line)["code"]) == ("application/json", "NOTARISED")


async def test_a_short_wait_is_answered_as_ever(tmp_path: Path) -> None:
    """Goal: accepting lines costs nothing. Method: no estimate; and HTTP/1.0, which knows no chunks."""
    async with ApiWorld(Telling()).serve() as world, aiohttp.ClientSession() as session:
        body = encode_submission(make_submission())
        kind, (line,) = await post(session, world.endpoint + "/v1/submissions", body, LINES)
        assert (kind, json.loads(line)["code"]) == ("application/json", "NOTARISED")
    async with ApiWorld(Telling(20.0)).serve() as world:
        head = b"POST /v1/submissions HTTP/1.0\r\nAccept: application/x-ndjson\r\nContent-Type: application/json\r\n"
        raw = await world.exchange(head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body), close=False)
        assert b"Content-Type: application/json\r\n" in raw


async def test_a_problem_behind_estimates_keeps_its_status(tmp_path: Path) -> None:
    """Goal: the last line alone counts. Method: a refusal, by hand and through the library."""
    participant = Telling(20.0, answer=lambda asked: Refused("TX_ID_REUSED", asked.request[32:64], 3))
    async with ApiWorld(participant).serve() as world, aiohttp.ClientSession() as session:
        body = encode_submission(make_submission())
        _, lines = await post(session, world.endpoint + "/v1/submissions", body, LINES)
        assert json.loads(lines[-1])["status"] == 409
        async with NotaryClient(world.endpoint) as client:
            assert isinstance(await client.submit(make_submission()), Refused)
        participant.answer = lambda _: NotNow("OUTCOME_UNKNOWN", "x", 0.01)
        async with NotaryClient(world.endpoint, RetryPolicy(deadline_s=0.1, timeout_s=0.01)) as client:
            assert isinstance(await client.submit(make_submission()), NotNow)


async def test_a_failure_behind_estimates_is_their_last_line(tmp_path: Path) -> None:
    """Goal: one call has one answer, whatever happens. Method: estimates, then an exception, of one and of a batch; by
    hand, on a connection that is still good afterwards, and through the library."""

    def fail(submission: Submission) -> Answer:
        raise RuntimeError("broken")

    participant = Telling(20.0, answer=fail)
    async with ApiWorld(participant).serve() as world, aiohttp.ClientSession() as session:
        one = make_submission()
        for path, body in (("", encode_submission(one)), ("/batch", encode_batch([one, make_submission()]))):
            kind, lines = await post(session, f"{world.endpoint}/v1/submissions{path}", body, LINES)
            assert kind == "application/x-ndjson"
            wait, problem = map(json.loads, lines)
            assert (wait["kind"], problem["status"], problem["code"]) == ("wait", 500, "INTERNAL")
        assert len(world.server.connections) == 1
        async with NotaryClient(world.endpoint, RetryPolicy(deadline_s=0.1, timeout_s=0.01)) as client:
            answer = await client.submit(one)
        assert isinstance(answer, NotNow)
        assert answer.code == "INTERNAL"


async def test_an_answer_that_follows_an_estimate_reaches_the_caller(tmp_path: Path) -> None:
    """Goal: an estimate prolongs the wait for the answer. Method: an attempt may take less than the answer does, of
    one and of a batch; without estimates nothing comes."""
    participant = Telling(30.0)
    participant.pause_s = 0.6
    impatient = RetryPolicy(timeout_s=0.01, attempt_max_s=0.2, deadline_s=0.2)
    async with ApiWorld(participant).serve() as world, NotaryClient(world.endpoint, impatient) as client:
        one, several = make_submission(), [make_submission() for _ in range(100)]
        answer = await client.submit(one)
        assert isinstance(answer, Notarised)
        assert certifies(answer, one, NOTARY_PUBLIC_KEY)
        answers = await client.submit_batch(several)
        assert [a.tx_id for a in answers if isinstance(a, Notarised)] == [s.request[32:64] for s in several]
        assert participant.submitted == [one, *several]
        participant.estimates_s, participant.gate = (), asyncio.Event()
        assert isinstance(await client.submit(one), NotNow)


async def test_a_history_has_what_was_estimated_first(tmp_path: Path) -> None:
    """Goal: estimates can be held against reality. Method: a recording client gets two, for one and for a batch."""
    written = io.BytesIO()
    async with (
        ApiWorld(Telling(20.0, 40.0)).serve() as world,
        RecordingClient(world.endpoint, HistoryWriter(written), "p") as client,
    ):
        await client.submit(make_submission())
        await client.submit_batch([make_submission(), make_submission()])
    written.seek(0)
    ended = [event for event in read_history(written) if isinstance(event, Ok)]
    assert [event.estimate_s for event in ended] == [20.0] * 3


async def test_a_connection_that_ends_behind_an_estimate_is_tried_again(tmp_path: Path) -> None:
    """Goal: estimates hide no lost answer. Method: cut the connection between estimate and answer, once."""
    participant = Telling(30.0)
    participant.gate = asyncio.Event()
    async with ApiWorld(participant).serve() as world, NotaryClient(world.endpoint) as client:
        waiting = asyncio.create_task(client.submit(make_submission()))
        async with asyncio.timeout(30):
            while not participant.submitted:
                await asyncio.sleep(0.01)
        for connection in list(world.server.connections):
            assert connection.transport is not None
            connection.transport.abort()
        participant.gate.set()
        assert isinstance(await waiting, Notarised)
        first, second = participant.submitted
        assert first == second


async def test_a_batch_may_be_submitted_without_waiting(tmp_path: Path) -> None:
    """Goal: 202 for many at once. Method: good ones and a bad one; each has its result in its place."""
    submissions = [make_submission() for _ in range(70)]
    document = json.loads(encode_batch(submissions))
    document["submissions"][40]["request"]["signature"] = "00" * 64
    async with ApiWorld(StubParticipant()).serve() as world, aiohttp.ClientSession() as session:
        url = world.endpoint + "/v1/submissions/batch/async"
        async with session.post(url, json=document) as response:
            assert response.status == 202
            results = (await response.json())["results"]
        assert world.counts.answers == {"ACCEPTED": 69, "SIGNATURE_INVALID": 1}
        assert results[40]["code"] == "SIGNATURE_INVALID"
        accepted = [result["submission_id"] for result in results if result["code"] == "ACCEPTED"]
        assert accepted == [s.submission_id for place, s in enumerate(submissions) if place != 40]
        async with session.post(url, json={"submissions": []}) as response:
            assert (response.status, (await response.json())["code"]) == (400, "EMPTY_BATCH")
