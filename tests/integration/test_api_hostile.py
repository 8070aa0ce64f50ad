"""The client against servers that are none, or broken ones: it goes on where it was, or reports why not, and never
hangs."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
import pytest
from aiohttp import web

from ledger_api.client import AnswerUnreadable, NotaryClient, RetryPolicy, SubmissionStream, exchange
from ledger_api.client import stream as frames
from ledger_api.wire.feed import CompletionDocument
from ledger_api.wire.stream_frames import PROTOCOL, Answers, Submissions, Welcome, encoder
from replica.notary.answers import Notarised, NotNow
from replica.notary.requests import Submission
from tests.worlds.api_world import make_submission, notarise

QUICK = RetryPolicy(deadline_s=20.0, timeout_s=0.005, attempt_max_s=5.0)
IMPATIENT = RetryPolicy(deadline_s=0.3, timeout_s=0.05, attempt_max_s=5.0)
DEEP = b"[" * 100_000
WELCOME = encoder.encode(Welcome(1, 100, 100, "r1", bytes(32)))


def line(offset: int) -> bytes:
    """A completion as the API sends it."""
    return msgspec.json.encode(
        CompletionDocument(
            offset=offset,
            user_id="u",
            command_id="c",
            act_as=["A"],
            submission_id="s",
            tx_id="00" * 32,
            content_digest="00" * 32,
            code="NOTARISED",
            log_offset=offset,
            notarised_offset=offset,
            recorded_at="2026-01-02T03:04:05.000006Z",
            conflicts=[],
        )
    )


BAD_ANSWERS = {
    "bad UTF-8": b'{"kind":"\xff"}',
    "nested deep": DEEP,
    "wrong types": b'{"kind":"completion","offset":"one"}',
    "half a line": b'{"kind":"compl',
    "a page": b"<html><body>Bad gateway</body></html>",
    "an offset that was there": line(1),
    "an absurd estimate": b'{"kind":"wait","estimate_s":1e308}',
    "nothing": b"",
}

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@contextlib.asynccontextmanager
async def served(answer: Answer) -> AsyncIterator[str]:
    """A server that answers everything like this; its URL."""
    app = web.Application(client_max_size=2**26)
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def lines(request: web.Request, *parts: bytes) -> web.StreamResponse:
    """A stream of these, and its end."""
    response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
    await response.prepare(request)
    await response.write(b"".join(parts))
    return response


@pytest.mark.parametrize("bad", BAD_ANSWERS.values(), ids=BAD_ANSWERS)
async def test_completions_go_on_behind_what_is_none(bad: bytes) -> None:
    """Goal: no gap and no duplicate past a broken answer. Method: each in the middle of a stream; then good ones."""
    asked: list[int] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        after = int(request.query["after"])
        asked.append(after)
        if after == 1 and asked.count(1) <= 2:
            return await lines(request, bad + b"\n")
        return await lines(request, line(after + 1) + b"\n", bad[:5] if after == 0 else b"")

    async with served(answer) as endpoint, NotaryClient(endpoint, QUICK) as client, asyncio.timeout(20):
        completions = client.completions()
        assert [(await anext(completions)).offset for _ in range(3)] == [1, 2, 3]
    assert asked == [0, 1, 1, 1, 2]


async def test_what_never_becomes_readable_is_told() -> None:
    """Goal: a reader does not wait for ever at a wrong address. Method: nonsense until the deadline; 503 pages not."""

    async def nonsense(request: web.Request) -> web.StreamResponse:
        if "follow" in request.query:
            return await lines(request, b"<html>\n")
        return web.Response(body=DEEP, content_type="application/json")

    async with served(nonsense) as endpoint, NotaryClient(endpoint, IMPATIENT) as client, asyncio.timeout(20):
        with pytest.raises(AnswerUnreadable):
            await anext(client.completions())
        with pytest.raises(AnswerUnreadable):
            await anext(client.published())
        with pytest.raises(AnswerUnreadable):
            await client.describe()

    async def away(_: web.Request) -> web.StreamResponse:
        return web.Response(status=503, text="<html>")

    async with served(away) as endpoint, NotaryClient(endpoint, IMPATIENT) as client:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(client.completions()), 3 * IMPATIENT.deadline_s)


@pytest.mark.parametrize("bad", BAD_ANSWERS.values(), ids=BAD_ANSWERS)
@pytest.mark.parametrize("kind", ["application/json", "application/x-ndjson"])
async def test_a_submission_without_an_answer_is_of_unknown_outcome(bad: bytes, kind: str) -> None:
    """Goal: NotNow, within the deadline. Method: each broken answer to a submission and to a batch, also as a line."""

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(body=bad + b"\n", content_type=kind)

    async with served(answer) as endpoint, NotaryClient(endpoint, IMPATIENT) as client, asyncio.timeout(20):
        results = [await client.submit(make_submission()), *await client.submit_batch([make_submission()] * 2)]
    assert [getattr(result, "code", None) for result in results] == ["OUTCOME_UNKNOWN"] * 3


async def test_estimates_without_an_end_end() -> None:
    """Goal: nobody is kept waiting for ever by promises. Method: an estimate every few ms; a bound of a second."""

    async def promise(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        while True:
            await response.write(b'{"kind":"wait","estimate_s":1e308}\n')
            await asyncio.sleep(0.02)

    policy = RetryPolicy(deadline_s=0.3, timeout_s=0.05, attempt_max_s=0.2, estimate_max_s=1.0)
    async with served(promise) as endpoint, NotaryClient(endpoint, policy) as client, asyncio.timeout(20):
        assert isinstance(await client.submit(make_submission()), NotNow)


BAD_MESSAGES = {
    "text": "hello",
    "noise": b"\xc1\xff",
    "nested deep": b"\x91" * 100_000,
    "bad UTF-8": b"\x93\x04\xa1\xff\xa1x",
    "wrong types": encoder.encode((2, [("one", 2)])),
    "too large": bytes(2_000),
    "unknown kind": encoder.encode((99, 1)),
}


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("bad", BAD_MESSAGES.values(), ids=BAD_MESSAGES)
async def test_a_stream_connects_again(monkeypatch: pytest.MonkeyPatch, bad: str | bytes, first: bool) -> None:
    """Goal: each submission gets its answer all the same. Method: each broken frame, as the first and later."""
    monkeypatch.setattr(frames, "FRAME_MAX_BYTES", 1_500)
    connections = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal connections
        connections += 1
        broken = connections == 1
        socket = web.WebSocketResponse(protocols=(PROTOCOL,))
        await socket.prepare(request)
        if broken and first:
            await send(socket, bad)
        await socket.send_bytes(WELCOME)
        async for message in socket:
            if broken:
                await send(socket, bad)
                continue
            batch = msgspec.msgpack.decode(message.data, type=Submissions).batch
            await socket.send_bytes(encoder.encode(Answers([(n, success(submission)) for n, submission in batch])))
        return socket

    async with served(answer) as endpoint, asyncio.timeout(20), SubmissionStream(endpoint, QUICK) as stream:
        assert isinstance(await stream.submit(make_submission()), Notarised)
    assert connections == 2


async def send(socket: web.WebSocketResponse, message: str | bytes) -> None:
    """As text or as bytes."""
    await (socket.send_str(message) if isinstance(message, str) else socket.send_bytes(message))


def success(submission: Submission) -> Notarised:
    """Of the stub notary."""
    answer = notarise(submission)
    assert isinstance(answer, Notarised)
    return answer


async def test_large_submissions_go_in_frames_that_a_server_takes() -> None:
    """Goal: a frame is below the least `body_max_bytes`. Method: 30 requests of 9,000 states; measure each frame."""
    sizes: list[int] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=(PROTOCOL,), max_msg_size=2**20)
        await socket.prepare(request)
        await socket.send_bytes(WELCOME)
        async for message in socket:
            sizes.append(len(message.data))
            batch = msgspec.msgpack.decode(message.data, type=Submissions).batch
            await socket.send_bytes(encoder.encode(Answers([(n, success(submission)) for n, submission in batch])))
        return socket

    large = [make_submission(inputs_count=9_000) for _ in range(10)]
    async with served(answer) as endpoint, SubmissionStream(endpoint, QUICK) as stream:
        assert len(await asyncio.gather(*map(stream.submit, large * 3))) == 30
        assert stream.connections_count == 1
    assert max(sizes) < 2**20
    assert len(sizes) < 30


@pytest.mark.parametrize("packed", [True, False])
async def test_an_answer_that_is_too_large_is_none(monkeypatch: pytest.MonkeyPatch, packed: bool) -> None:
    """Goal: memory is bounded, whatever is sent. Method: a body past the bound, plain and unpacked from a little."""
    monkeypatch.setattr(exchange, "ANSWER_MAX_BYTES", 100_000)
    body = gzip.compress(bytes(10**6)) if packed else bytes(10**6)
    headers = {"Content-Encoding": "gzip"} if packed else {}

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(body=body, headers=headers, content_type="application/json")

    async with served(answer) as endpoint, NotaryClient(endpoint, IMPATIENT) as client, asyncio.timeout(20):
        result = await client.submit(make_submission())
    assert isinstance(result, NotNow)
    assert "at most 100000 bytes" in result.detail
