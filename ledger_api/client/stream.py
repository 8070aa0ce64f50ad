"""The client's end of the stream of submissions: many under way at a time, each until its answer is final."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from types import TracebackType
from typing import Self

import aiohttp
import msgspec

from ledger_api.client.retry import RetryPolicy
from replica.notary.answers import Accepted, Notarised, NotNow, Refused
from replica.notary.documents import ACCEPTED, ProblemDocument, problem_document
from replica.notary.errors import Code
from replica.notary.requests import Submission
from replica.notary.stream_frames import (
    PROTOCOL,
    Answers,
    Closing,
    FromServer,
    Rejected,
    StreamAnswer,
    Submissions,
    Waits,
    Welcome,
    encoder,
)

STREAM_PATH = "/v1/submissions/stream"
FRAME_SUBMISSIONS = 100
_SWEEP_S = 0.25
_PING_S = 20.0
_decoder: msgspec.msgpack.Decoder[FromServer] = msgspec.msgpack.Decoder(FromServer)

StreamResult = Notarised | Refused | NotNow | Accepted | ProblemDocument
"""An answer of the notary, or the problem for which a submission never got as far: it must be changed first."""


class _Asked(msgspec.Struct):
    submission: Submission
    future: asyncio.Future[StreamResult]
    deadline_s: float
    attempts: int = 0
    last: NotNow | None = None


class SubmissionStream:
    """Use it as `async with SubmissionStream("http://127.0.0.1:8080") as stream`, and call `submit` many times at once.

    What has no final answer is sent again by itself, with the same ids, also when the connection breaks and the next
    replica is active; after the policy's deadline, or the server's estimate when that is longer, a NotNow is returned.
    """

    def __init__(
        self,
        endpoint: str,
        policy: RetryPolicy | None = None,
        *,
        asynchronous: bool = False,
        under_way_max: int = 10_000,
    ) -> None:
        """`asynchronous`: the answer is Accepted, as soon as a submission is recorded; its outcome is a completion."""
        self._url = endpoint.rstrip("/") + STREAM_PATH
        self._policy = policy or RetryPolicy()
        self._asynchronous = asynchronous
        self._room = asyncio.Semaphore(under_way_max)
        self._random = random.Random().random  # noqa: S311 (spreads retries; no secret)
        self._loop = asyncio.get_running_loop()
        self._numbers = 0
        self._asked: dict[int, _Asked] = {}
        self._sent: set[int] = set()  # on this connection, and without an answer
        self._queue: deque[int] = deque()
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.connections_count = 0  # made so far: all but the first are reconnections

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(work) for work in (self._keep_connected(), self._sweep_for_ever())]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """What has no answer yet is given up: its outcome is unknown."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for number in list(self._asked):
            self._give_up(number)

    async def submit(self, submission: Submission) -> StreamResult:
        """Submit one and wait for its answer. Waits first while as many are under way as may be."""
        await self._room.acquire()
        number, self._numbers = self._numbers, self._numbers + 1
        future: asyncio.Future[StreamResult] = self._loop.create_future()
        self._asked[number] = _Asked(submission, future, self._loop.time() + self._policy.deadline_s)
        self._queue.append(number)
        self._wake.set()
        return await future

    async def decide(self, submission: Submission) -> Notarised | Refused | NotNow | ProblemDocument:
        """As `submit`, of a stream that is not asynchronous: the answer is a decision."""
        result = await self.submit(submission)
        if isinstance(result, Accepted):
            return NotNow(ACCEPTED, "recorded; the outcome is a completion", result.estimate_s)
        return result

    # ---- the connection ----

    async def _keep_connected(self) -> None:
        failures = 0
        async with aiohttp.ClientSession() as session:
            while True:
                try:
                    if await self._converse(session):
                        failures = 0
                except (aiohttp.ClientError, TimeoutError, OSError, msgspec.DecodeError):
                    pass  # whatever went wrong: connect again, and send again what has no answer
                self._queue.extendleft(sorted(self._sent, reverse=True))
                self._sent.clear()
                await asyncio.sleep(self._policy.delay_s(failures, 0.0, self._random()))
                failures += 1

    async def _converse(self, session: aiohttp.ClientSession) -> bool:
        """One connection, from its beginning to its end; True when it was let in."""
        timeout = aiohttp.ClientWSTimeout(ws_close=1.0)
        async with asyncio.timeout(self._policy.attempt_max_s):
            socket = await session.ws_connect(
                self._url, protocols=(PROTOCOL,), heartbeat=_PING_S, max_msg_size=0, timeout=timeout
            )
        async with socket:
            async with asyncio.timeout(self._policy.attempt_max_s):
                welcome = _decoder.decode(await socket.receive_bytes())
            if not isinstance(welcome, Welcome):
                return False
            self.connections_count += 1
            sending = asyncio.create_task(self._send_for_ever(socket, welcome))
            try:
                async for message in socket:
                    if message.type is not aiohttp.WSMsgType.BINARY or not self._take(_decoder.decode(message.data)):
                        break
            finally:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
        return True

    async def _send_for_ever(self, socket: aiohttp.ClientWebSocketResponse, welcome: Welcome) -> None:
        while True:
            self._wake.clear()
            batch: list[tuple[int, Submission]] = []
            frame_max = min(FRAME_SUBMISSIONS, welcome.batch_max)
            while self._queue and len(batch) < frame_max and len(self._sent) < welcome.window:
                number = self._queue.popleft()
                asked = self._asked.get(number)
                if asked is not None:  # not given up meanwhile
                    asked.attempts += 1
                    self._sent.add(number)
                    batch.append((number, asked.submission))
            if batch:
                await socket.send_bytes(encoder.encode(Submissions(batch, self._asynchronous)))
            else:
                await self._wake.wait()
                await asyncio.sleep(0)  # what is submitted in the same turn goes into the same frame

    # ---- answers ----

    def _take(self, frame: FromServer) -> bool:
        """Act on a frame; False when it is better to connect again, perhaps to another replica."""
        if isinstance(frame, Waits):
            deadline_s = self._loop.time() + frame.wait_s
            for number in frame.numbers:
                if (asked := self._asked.get(number)) is not None:
                    asked.deadline_s = max(asked.deadline_s, deadline_s)
            return True
        if not isinstance(frame, Answers):
            return not isinstance(frame, Closing)
        stays = True
        for number, answer in frame.batch:
            self._sent.discard(number)
            asked = self._asked.get(number)
            if asked is None:
                continue
            if isinstance(answer, NotNow):
                stays = stays and answer.code != Code.NOT_ACTIVE.name
                self._later(number, asked, answer)
            else:
                self._finish(number, asked, answer)
        self._wake.set()
        return stays

    def _later(self, number: int, asked: _Asked, answer: NotNow) -> None:
        asked.last = answer
        delay_s = self._policy.delay_s(asked.attempts - 1, answer.retry_after_s, self._random())
        asked.deadline_s = max(asked.deadline_s, self._loop.time() + answer.retry_after_s)
        self._loop.call_later(delay_s, self._again, number)

    def _again(self, number: int) -> None:
        self._queue.append(number)
        self._wake.set()

    def _finish(self, number: int, asked: _Asked, answer: StreamAnswer) -> None:
        del self._asked[number]
        self._room.release()
        if not asked.future.done():
            asked.future.set_result(_result_of(answer))

    def _give_up(self, number: int) -> None:
        asked = self._asked[number]
        self._sent.discard(number)
        self._finish(number, asked, asked.last or NotNow(Code.OUTCOME_UNKNOWN.name, "no answer in time", 0.0))

    async def _sweep_for_ever(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            now_s = self._loop.time()
            for number in [number for number, asked in self._asked.items() if asked.deadline_s <= now_s]:
                self._give_up(number)


def _result_of(answer: StreamAnswer) -> StreamResult:
    if isinstance(answer, Rejected):
        return problem_document(Code[answer.code], answer.detail)
    return answer
