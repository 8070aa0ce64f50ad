"""The client library's decoders under noise: whatever comes back is an answer, or ends in their one typed error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from typing import cast

import aiohttp
import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ledger_api.client import (
    AnswerUnreadable,
    NotaryClient,
    RetryPolicy,
    SubmissionStream,
    answers,
    connection,
    exchange,
    feeds,
    success_of,
)
from ledger_api.client import client as http
from ledger_api.client import stream as frames
from ledger_api.client.errors import ClientError, StreamEnded
from ledger_api.client.exchange import decode, read_body, read_lines
from ledger_api.wire.answers import answer_to_document
from ledger_api.wire.feed import CheckpointDocument, EndDocument
from ledger_api.wire.problems import ProblemDocument, problem_document
from ledger_api.wire.stream_frames import Answers, Closing, Rejected, StreamAnswer, Waits, Welcome, encoder
from replica.notary.answers import Accepted, Notarised, NotNow, Refused
from replica.notary.codes import Code
from tests.unit.api.test_fuzz import EXAMPLES, NESTED, damaged, only
from tests.worlds.api_world import make_submission, notarise

SUBMISSION = make_submission()
SUCCESS = notarise(SUBMISSION)
PROBLEM = problem_document(Code.NOT_ACTIVE, "passive", retry_after_s=0.25)
JSON = [
    msgspec.json.encode(answer_to_document(SUCCESS)),
    msgspec.json.encode(PROBLEM),
    msgspec.json.encode(CheckpointDocument(offset=3)),
    msgspec.json.encode(EndDocument(offset=3, problem=PROBLEM)),
]
FRAMES = [
    encoder.encode(frame)
    for frame in (
        Welcome(1, 10, 10, "r1", bytes(32)),
        Answers([(0, SUCCESS), (1, NotNow("X", "y", 1.0)), (2, Rejected("X", "y"))]),
        Waits([0, 1], 3.0),
        Closing("X", "y"),
    )
]
DEEP = [b"[" * 100_000, b'{"kind":' * 50_000, b'{"results":[' + b"[" * 50_000, b'{"kind":"\xff"}', b'{"status":1e999}']
NOISE = st.binary(max_size=200) | NESTED.map(msgspec.json.encode) | st.sampled_from([*DEEP, *JSON])
ANSWERS: st.SearchStrategy[StreamAnswer] = st.one_of(
    st.builds(NotNow, st.text(max_size=20) | st.just("NOT_ACTIVE"), st.text(max_size=9), st.floats()),
    st.builds(Rejected, st.text(max_size=20) | st.just("PARTY_UNKNOWN"), st.text(max_size=9)),
    st.builds(Refused, st.text(max_size=20) | st.just("STATE_CONFLICT"), st.binary(max_size=40)),
    st.just(cast(Notarised, SUCCESS)),
)


@EXAMPLES
@given(NOISE | st.sampled_from(JSON).flatmap(damaged))
@example(DEEP[0])
@example(DEEP[3])
def test_json_documents(raw: bytes) -> None:
    """Goal: one error, whatever a document is instead. Method: every decoder, damaged answers, nesting, bad UTF-8."""
    decoders = (answers._notarised, answers._accepted, answers._problem, http._batch, http._page, http._notary)
    lines = (connection.head_decoder, feeds.completion_lines, feeds.update_lines)
    asked = (http._ledger_end, http._transaction, http._state, http._attempts, http._completion)
    for decoder in (*decoders, *lines, *asked):
        only(AnswerUnreadable, lambda given_bytes, decoder=decoder: decode(decoder, given_bytes), raw)


@EXAMPLES
@given(st.sampled_from([0, 200, 202, 401, 409, 503]), NOISE | st.sampled_from(JSON).flatmap(damaged))
def test_an_answer_is_always_one_of_the_results(status: int, raw: bytes) -> None:
    """Goal: what is no answer leaves the outcome unknown. Method: any status with anything; the typed errors of it."""
    result = answers.read_decision(status, raw)
    assert isinstance(result, Notarised | Refused | NotNow | ProblemDocument)
    only(ClientError, success_of, result)
    answer_to_document(result) if not isinstance(result, ProblemDocument) else StreamEnded(result, 3)
    assert isinstance(answers.why_not(raw), Exception)
    assert isinstance(answers.read_answer(status, raw), Notarised | Refused | NotNow | ProblemDocument | Accepted)


@EXAMPLES
@given(st.sampled_from(FRAMES).flatmap(damaged) | NESTED.map(msgspec.msgpack.encode) | st.binary(max_size=100))
@example(b"\x91" * 100_000)
@example(b"\x93\x04\xa1\xff\xa1x")
def test_frames_of_the_stream(raw: bytes) -> None:
    """Goal: one error for every frame that is none. Method: damaged frames, other MessagePack, nesting, bad UTF-8."""
    message = aiohttp.WSMessage(aiohttp.WSMsgType.BINARY, raw, None)
    only(AnswerUnreadable, frames._frame_in, message)


@pytest.mark.parametrize("kind", [aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.ERROR, aiohttp.WSMsgType.CLOSED])
def test_messages_that_are_no_frames(kind: aiohttp.WSMsgType) -> None:
    """Goal: a connection that breaks its rules is replaced. Method: text, an error, an end, where a frame belongs."""
    with pytest.raises(exchange.NO_ANSWER):
        frames._frame_in(aiohttp.WSMessage(kind, "{}", None))


class Chunks:
    """A body that comes in pieces."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces

    async def iter_any(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece


def body(pieces: Sequence[bytes]) -> aiohttp.StreamReader:
    """It as the client sees it."""
    return cast(aiohttp.StreamReader, Chunks(pieces))


@EXAMPLES
@given(st.binary(max_size=60).map(lambda raw: raw.replace(b"\x01", b"\n")), st.lists(st.integers(0, 60), max_size=6))
def test_lines_do_not_depend_on_how_they_come(raw: bytes, cuts: list[int]) -> None:
    """Goal: whole lines, each once; what the last one lacks is not made up. Method: any cuts of any bytes."""
    places = [0, *sorted(min(cut, len(raw)) for cut in cuts), len(raw)]
    pieces = [raw[a:b] for a, b in pairwise(places)]

    async def read() -> list[bytes]:
        return [line async for line in read_lines(body(pieces))]

    assert asyncio.run(read()) == raw.split(b"\n")[:-1]


async def test_a_line_without_an_end_and_a_body_without_one_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: memory and time are bounded. Method: a line too long, one that comes too slowly, a body too large."""
    monkeypatch.setattr(exchange, "LINE_MAX_BYTES", 10)
    monkeypatch.setattr(exchange, "ANSWER_MAX_BYTES", 10)
    with pytest.raises(AnswerUnreadable):
        [line async for line in read_lines(body([b"x" * 6, b"x" * 6]))]
    with pytest.raises(AnswerUnreadable):
        await read_body(body([b"x" * 6, b"x" * 6]))
    assert [line async for line in read_lines(body([b"x" * 6, b"\n" + b"y" * 9, b"\n"]))] == [b"x" * 6, b"y" * 9]
    monkeypatch.setattr(exchange, "SILENCE_MAX_S", -1.0)
    with pytest.raises(TimeoutError):
        [line async for line in read_lines(body([b"x", b"x"]))]


@EXAMPLES
@given(st.lists(st.tuples(st.integers(0, 3), ANSWERS), max_size=6), st.floats())
def test_no_answer_stops_a_stream(batch: list[tuple[int, StreamAnswer]], wait_s: float) -> None:
    """Goal: unknown codes, absurd estimates and answers to nobody end no stream. Method: any answers; then an end."""

    async def play() -> None:
        stream = SubmissionStream("http://127.0.0.1:1", RetryPolicy(deadline_s=0.0, timeout_s=0.001))
        asking = [asyncio.create_task(stream.submit(SUBMISSION)) for _ in range(3)]
        await asyncio.sleep(0)
        for frame in (Waits([0, 7], wait_s), Answers(batch)):
            stream._take(frame)
        async with asyncio.timeout(5):
            for number in list(stream._asked):
                assert stream._asked[number].deadline_s < stream._loop.time() + RetryPolicy().estimate_max_s + 1
                stream._give_up(number)
            for result in await asyncio.gather(*asking):
                if not isinstance(result, ProblemDocument):
                    answer_to_document(result)

    asyncio.run(play())


async def test_a_batch_with_too_few_or_unreadable_results_is_of_unknown_outcome() -> None:
    """Goal: nothing is taken for an answer to something else. Method: what a server may send instead of two results."""
    client = NotaryClient("http://127.0.0.1:1", RetryPolicy(deadline_s=0.0))
    for answer in (b'{"results":[]}', b'{"results":[[[[1]]],{}]}', b'{"results":[{"status":"x"},1]}', b"", *DEEP):

        async def call(*_: object, answer: bytes = answer) -> tuple[int, bytes]:
            return 200, answer

        client._connection.call = call  # type: ignore[method-assign]
        results = await client.submit_batch([SUBMISSION, SUBMISSION])
        assert [getattr(result, "code", None) for result in results] == ["OUTCOME_UNKNOWN"] * 2
