"""The client's end of the stream of submissions: many under way at a time, each until its answer is final."""

from __future__ import annotations

import asyncio
import math
import random
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from types import TracebackType
from typing import Self

import aiohttp
import msgspec

from ledger_api.client.access import OPEN, Access, Bearer, headers_with
from ledger_api.client.connection import end_now
from ledger_api.client.endpoints import Endpoints, Given
from ledger_api.client.errors import AnswerUnreadable
from ledger_api.client.exchange import NO_ANSWER, decode, describe_failure
from ledger_api.client.lookout import Lookout, Waiting
from ledger_api.client.retry import RetryPolicy
from ledger_api.client.signing import Deduplication, check_signed_period
from ledger_api.wire.answers import ACCEPTED
from ledger_api.wire.problems import PROBLEM_TYPE, ProblemDocument, problem_document
from ledger_api.wire.stream_frames import (
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
from replica.notary.answers import Accepted, Notarised, NotNow, Refused
from replica.notary.codes import Code, Retry
from replica.notary.requests import Submission

STREAM_PATH = "/v1/submissions/stream"
FRAME_SUBMISSIONS = 100
FRAME_REQUEST_BYTES = 2**19  # with all that is not the request below the least that a server may be set to take, 1 MiB
FRAME_MAX_BYTES = 64 * 2**20  # from the server: 100 answers, each with the conflicts of what fits one frame of ours
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

    The stream resends submissions without a final answer, with the same ids, also when the connection breaks and
    another replica becomes active. After the policy's deadline, or the server's estimate if that is longer, `submit`
    returns a NotNow.
    """

    def __init__(
        self,
        endpoint: Given,
        policy: RetryPolicy | None = None,
        *,
        access: Access = OPEN,
        asynchronous: bool = False,
        deduplication: Deduplication | None = None,
        under_way_max: int = 10_000,
    ) -> None:
        """`asynchronous`: the answer is Accepted, as soon as a submission is recorded; its outcome is a completion.

        `deduplication`: how far back an acceptance of the same command counts; without, the longest that is allowed.
        `endpoint`: as of NotaryClient. Raises ConfigError when one, or what `access` names, cannot be used.
        """
        self._endpoints = Endpoints(endpoint)
        self._policy = policy or RetryPolicy()
        self._tls = access.tls_for_all(self._endpoints.configured)
        self._bearer = Bearer(access.token)
        period = deduplication or Deduplication()
        self._deduplication = deduplication
        self._terms = (asynchronous, period.duration_s, period.after_offset or 0)
        self._room = asyncio.Semaphore(under_way_max)
        self._random = random.Random().random  # noqa: S311 (spreads retries; no secret)
        self._loop = asyncio.get_running_loop()
        self._lookout = Lookout(self._endpoints, self._bearer, self._tls) if self._endpoints.several else None
        self._numbers = 0
        self._asked: dict[int, _Asked] = {}
        self._sent: set[int] = set()  # on this connection, and without an answer
        self._queue: deque[int] = deque()
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._trouble = "no answer in time"  # why there is no connection
        self._was_refused: ProblemDocument | None = None  # this connection's token
        self._good_at_s = -math.inf  # when a token was last accepted
        self._useful = False  # this connection: it brought an answer
        self.connections_count = 0  # made so far: all but the first are reconnections
        self.on_sent: Callable[[Submission], None] = lambda submission: None  # before each sending, also the same again

    async def __aenter__(self) -> Self:
        """Raises ConfigError or TokenUnavailable when a token is configured and none is available."""
        await self._bearer.token()
        work = [self._keep_connected(), self._sweep_for_ever()]
        if self._lookout is not None:
            work.append(self._lookout.run())
        self._tasks = [asyncio.create_task(one) for one in work]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Submissions without an answer are given up: their outcome is unknown."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for number in list(self._asked):
            self._give_up(number)

    async def submit(self, submission: Submission) -> StreamResult:
        """Submit one and wait for its answer. Waits first while as many are under way as may be.

        Raises BadRequest for one that was signed for another deduplication period than the stream's, if it has one."""
        if self._deduplication is not None:
            check_signed_period(submission, self._deduplication)
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
        asked: set[str] = set()  # endpoints that failed, in this round
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=self._tls)) as session:
            while True:
                token = await self._bearer.token()
                self._was_refused, self._useful = None, False
                endpoint = self._endpoints.current
                try:
                    if await self._converse(session, endpoint, token):
                        failures = 0
                except NO_ANSWER as error:
                    self._trouble = describe_failure(error)  # reconnect, and resend submissions without an answer
                    if isinstance(error, aiohttp.WSServerHandshakeError) and error.status == HTTPStatus.UNAUTHORIZED:
                        self._was_refused = _token_problem(token)
                self._queue.extendleft(sorted(self._sent, reverse=True))
                self._sent.clear()
                if self._was_refused is not None:
                    await self._after_refusal(self._was_refused, token)
                elif self._useful:
                    asked.clear()
                if self._was_refused is None and self._endpoints.next_of_round(endpoint, asked):
                    continue
                await asyncio.sleep(self._policy.delay_s(failures, 0.0, self._random()))
                failures += 1

    async def _after_refusal(self, problem: ProblemDocument, token: str | None) -> None:
        """Get another token. Without one, unsent submissions end here; the outcome of the others is unknown."""
        was_good = self._loop.time() - self._good_at_s < self._policy.deadline_s
        if await self._bearer.outlives(problem, token, was_good):
            return
        problem = self._bearer.explain(problem)
        self._trouble = problem.detail
        for number, asked in list(self._asked.items()):
            if not asked.attempts:
                self._finish(number, asked, problem)

    async def _converse(self, session: aiohttp.ClientSession, endpoint: str, token: str | None) -> bool:
        """One connection, from start to end. Returns True when the server accepted it.

        Raises TimeoutError when another replica is active while something waits for this one.
        """
        async with asyncio.timeout(None) as limit:
            waiting = Waiting(endpoint, self._loop.time(), lambda: end_now(limit))
            if self._lookout is not None:
                self._lookout.add(waiting)
            try:
                return await self._connected(session, endpoint, token, waiting)
            finally:
                if self._lookout is not None:
                    self._lookout.remove(waiting)

    async def _connected(
        self, session: aiohttp.ClientSession, endpoint: str, token: str | None, waiting: Waiting
    ) -> bool:
        async with asyncio.timeout(self._policy.attempt_max_s):
            socket = await session.ws_connect(
                endpoint + STREAM_PATH,
                protocols=(PROTOCOL,),
                heartbeat=_PING_S,
                max_msg_size=FRAME_MAX_BYTES,
                timeout=aiohttp.ClientWSTimeout(ws_close=1.0),
                headers=headers_with(token, {}),
            )
        async with socket:
            async with asyncio.timeout(self._policy.attempt_max_s):
                welcome = _frame_in(await socket.receive())
            if not isinstance(welcome, Welcome):
                raise AnswerUnreadable("the stream does not begin with a welcome")
            self.connections_count += 1
            self._trouble = "no answer in time"
            waiting.since_s = math.inf
            sending = asyncio.create_task(self._send_for_ever(socket, welcome, waiting))
            try:
                async for message in socket:
                    self._good_at_s = self._loop.time()
                    if not self._take(_frame_in(message)):
                        break
                    waiting.since_s = self._good_at_s if self._sent else math.inf
            finally:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
        return True

    async def _send_for_ever(self, socket: aiohttp.ClientWebSocketResponse, welcome: Welcome, waiting: Waiting) -> None:
        while True:
            self._wake.clear()
            batch: list[tuple[int, Submission]] = []
            frame_max, size = min(FRAME_SUBMISSIONS, welcome.batch_max), 0
            while self._queue and len(batch) < frame_max and len(self._sent) < welcome.window:
                if size >= FRAME_REQUEST_BYTES:
                    break
                number = self._queue.popleft()
                asked = self._asked.get(number)
                if asked is not None:  # the caller has not given up
                    asked.attempts += 1
                    self._sent.add(number)
                    batch.append((number, asked.submission))
                    self.on_sent(asked.submission)
                    size += len(asked.submission.request)
            if batch:
                waiting.since_s = min(waiting.since_s, self._loop.time())
                await socket.send_bytes(encoder.encode(Submissions(batch, *self._terms)))
            else:
                await self._wake.wait()
                await asyncio.sleep(0)  # all submissions of one turn go into one frame

    # ---- answers ----

    def _take(self, frame: FromServer) -> bool:
        """Act on a frame; False when it is better to connect again, perhaps to another replica."""
        if isinstance(frame, Waits):
            deadline_s = self._loop.time() + self._policy.believed_s(frame.wait_s)
            for number in frame.numbers:
                if (asked := self._asked.get(number)) is not None:
                    asked.deadline_s = max(asked.deadline_s, deadline_s)
            return True
        if isinstance(frame, Closing):
            if frame.code == Code.TOKEN_INVALID.name:
                self._was_refused = problem_document(Code.TOKEN_INVALID, frame.detail)
            return False
        if not isinstance(frame, Answers):
            return True
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
                self._useful = True
                self._finish(number, asked, answer)
        self._wake.set()
        return stays

    def _later(self, number: int, asked: _Asked, answer: NotNow) -> None:
        asked.last = answer
        if self._endpoints.several and answer.code == Code.NOT_ACTIVE.name:
            self._sent.add(number)  # for the next endpoint, with all that has no answer here
            return
        delay_s = self._policy.delay_s(asked.attempts - 1, answer.retry_after_s, self._random())
        retry_after_s = self._policy.believed_s(answer.retry_after_s)
        asked.deadline_s = max(asked.deadline_s, self._loop.time() + retry_after_s)
        self._loop.call_later(delay_s, self._again, number)

    def _again(self, number: int) -> None:
        self._queue.append(number)
        self._wake.set()

    def _finish(self, number: int, asked: _Asked, answer: StreamAnswer | ProblemDocument) -> None:
        del self._asked[number]
        self._room.release()
        if not asked.future.done():
            asked.future.set_result(_result_of(answer))

    def _give_up(self, number: int) -> None:
        asked = self._asked[number]
        self._sent.discard(number)
        self._finish(number, asked, asked.last or NotNow(Code.OUTCOME_UNKNOWN.name, self._trouble, 0.0))

    async def _sweep_for_ever(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            now_s = self._loop.time()
            for number in [number for number, asked in self._asked.items() if asked.deadline_s <= now_s]:
                self._give_up(number)


def _result_of(answer: StreamAnswer | ProblemDocument) -> StreamResult:
    """The answer as a type of this release."""
    if isinstance(answer, Rejected) or (isinstance(answer, Refused) and answer.code not in Code.__members__):
        return _problem(answer.code, answer.detail if isinstance(answer, Rejected) else answer.code)
    if isinstance(answer, NotNow) and answer.code not in Code.__members__:
        return NotNow(Code.OUTCOME_UNKNOWN.name, f"{answer.code}: {answer.detail}", answer.retry_after_s)
    return answer


def _problem(name: str, detail: str) -> ProblemDocument:
    """The problem of a code, also of one that only a newer release knows."""
    if name in Code.__members__:
        return problem_document(Code[name], detail)
    return ProblemDocument(
        type=PROBLEM_TYPE + name,
        title=name,
        status=HTTPStatus.BAD_REQUEST,
        detail=detail,
        code=name,
        remedy=Code.ANSWER_UNREADABLE.remedy,
        retry=Retry.NO,
    )


def _token_problem(token: str | None) -> ProblemDocument:
    """The problem of a refused handshake. aiohttp does not give the body of that answer."""
    if token is None:
        return problem_document(Code.TOKEN_MISSING, "the API asks for a token, and this client has none")
    return problem_document(Code.TOKEN_INVALID, "the API does not accept this client's token")


def _frame_in(message: aiohttp.WSMessage) -> FromServer:
    """The frame in a message. Raises AnswerUnreadable, or ConnectionError for one that ends the connection."""
    if message.type is aiohttp.WSMsgType.BINARY:
        return decode(_decoder, message.data)
    if message.type is aiohttp.WSMsgType.TEXT:
        raise AnswerUnreadable("a stream has binary messages only")
    raise ConnectionResetError("the stream ended")
