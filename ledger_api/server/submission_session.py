"""One stream of submissions: many submissions a frame, one answer for each, until the stream ends."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import msgspec
import structlog
from aiohttp import WSCloseCode, WSMsgType, web

from ledger_api.server.authorisation import Caller
from ledger_api.server.byte_budget import ANSWER_BYTES, ByteBudget, Reservation, signed_answers_max_bytes
from ledger_api.server.capacity import Capacity
from ledger_api.server.logs import LogLimits
from ledger_api.server.settings import ApiSettings
from ledger_api.server.validation import Validator
from ledger_api.wire.problems import printable
from ledger_api.wire.stream_frames import (
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
from replica.link.interface import CoreLink, SubmitOptions
from replica.notary.codes import Code
from replica.notary.errors import BadRequest
from replica.notary.requests import Submission
from replica.notary.untrusted import UNREADABLE
from replica.telemetry.counts import ApiCounts

CHUNK = 104  # submissions that are validated and handed over together: some ms, then other calls get their turn
FRAME_MAX_BYTES = 2**20  # of a frame of answers; one answer alone may have more
_CONFLICT_BYTES = 128  # a state, a hash and four names
_BUDGET_WAIT_S = 60.0  # then they are asked for again
_log = structlog.get_logger(__name__)
_decoder = msgspec.msgpack.Decoder(Submissions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What all streams of submissions share."""

    core: CoreLink
    validator: Validator
    counts: ApiCounts
    settings: ApiSettings
    welcome: Welcome
    capacity: Capacity
    limits: LogLimits


class Session:
    """One client's stream. Each chunk of a frame is validated, handed over, and answered by itself."""

    def __init__(
        self,
        shared: Shared,
        socket: web.WebSocketResponse,
        request_id: str,
        caller: Caller,
        charge: Callable[[int], None],
        *,
        holder: Hashable,
    ) -> None:
        """`charge` takes submissions from the caller's share, or raises RateExceeded. `holder`: see `holder_of`."""
        self._caller = caller
        self._charge = charge
        self._shared = shared
        self._holder = holder
        self._socket = socket
        self._request_id = request_id
        self._under_way = 0
        self._window = ByteBudget(shared.settings.stream_window_bytes)
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Serve until the client ends the stream, or breaks its rules, or its token expires."""
        await self._send(self._shared.welcome)
        expires_at_s = self._caller.expires_at_s
        try:
            async with asyncio.timeout(None if expires_at_s == math.inf else expires_at_s - time.time()) as token:
                async for message in self._socket:
                    if message.type is not WSMsgType.BINARY:
                        raise BadRequest("a stream has binary messages only", Code.MALFORMED_REQUEST)
                    await self._take(_decode(message.data))
        except TimeoutError:
            if not token.expired():
                raise
            await self._finish(_too_old())
        except BadRequest as error:
            about = {"code": error.code.name, "detail": printable(error.detail)}
            self._shared.limits.refused.write(_log.info, "stream_refused", request_id=self._request_id, **about)
            await self._finish(error)
        except ConnectionError:
            pass  # the client is gone
        finally:
            for task in self._tasks:
                task.cancel()

    async def _take(self, frame: Submissions) -> None:
        """Hand a frame over, chunk by chunk. Raises BadRequest when it breaks a rule of the stream."""
        count = len(frame.batch)
        self._check(frame, count)
        self._charge(count)
        options = SubmitOptions(frame.asynchronous, frame.deduplication_s, frame.deduplication_after or None)
        for start in range(0, count, CHUNK):
            chunk = frame.batch[start : start + CHUNK]
            held = await self._hold(chunk)
            task = asyncio.create_task(self._answer(chunk, options))
            self._tasks.add(task)
            task.add_done_callback(partial(self._done, held=held))
            await asyncio.sleep(0)  # the chunk is validated and handed over now; other calls get their turn

    def _check(self, frame: Submissions, count: int) -> None:
        welcome = self._shared.welcome
        self._under_way += count
        if count > welcome.batch_max:
            raise BadRequest(f"{count} submissions in a frame, the limit is {welcome.batch_max}", Code.BATCH_TOO_LARGE)
        if self._under_way > welcome.window:
            raise BadRequest(
                f"{self._under_way} submissions without an answer, the window is {welcome.window}", Code.WINDOW_EXCEEDED
            )
        if frame.deduplication_s is not None and frame.deduplication_after:
            raise BadRequest("a deduplication period is a duration or an offset, not both")
        if self._caller.left_s(time.time()) <= 0:
            raise _too_old()

    async def _hold(self, batch: list[tuple[int, Submission]]) -> list[Reservation]:
        """Reserve the bytes of these submissions and of their answers. The stream reads no more until then."""
        size_bytes = sum([len(submission.request) for _, submission in batch])
        answers_bytes = signed_answers_max_bytes(size_bytes, len(batch))
        wanted = (self._window, None, size_bytes), (self._shared.capacity.answers, self._holder, answers_bytes)
        held: list[Reservation] = []
        try:
            for budget, holder, wanted_bytes in wanted:
                while (part := await budget.wait(wanted_bytes, holder, _BUDGET_WAIT_S)) is None:
                    pass
                held.append(part)
        except BaseException:
            _release(held)
            raise
        return held

    async def _answer(self, batch: list[tuple[int, Submission]], options: SubmitOptions) -> None:
        """Send the answers to these, each with its number."""
        shared, count = self._shared, len(batch)
        refusal = shared.capacity.refusal(count, self._holder)
        if refusal is not None:
            await self._send(Answers([(number, refusal) for number, _ in batch]))
        else:
            with shared.capacity.submit(count, self._holder):
                for answers in _in_frames(await self._ask(batch, options)):
                    await self._send(Answers(answers))
        self._under_way -= count

    async def _ask(self, batch: list[tuple[int, Submission]], options: SubmitOptions) -> list[tuple[int, StreamAnswer]]:
        """The answers to these, in any order. Those that are not valid never go to the core."""
        groups, answers = self._validate(batch, options)
        asking = [self._ask_together(*group, chosen) for chosen, group in groups.items()]
        for answered in await asyncio.gather(*asking):
            answers += answered
        counted = self._shared.counts.answers
        for _, answer in answers:
            code = getattr(answer, "code", "") or type(answer).__name__.upper()
            counted[code] = counted.get(code, 0) + 1
        return answers

    async def _ask_together(
        self, numbers: list[int], submissions: list[Submission], options: SubmitOptions
    ) -> list[tuple[int, StreamAnswer]]:
        """The core's answers to valid submissions that share their options."""

        def report(wait_s: float) -> None:
            task = asyncio.create_task(self._send(Waits(numbers, wait_s)))
            self._tasks.add(task)
            task.add_done_callback(self._done)

        answers = cast(
            "list[StreamAnswer]", await self._shared.core.submit(submissions, options, report)
        )  # never early
        return list(zip(numbers, answers, strict=True))

    def _validate(
        self, batch: list[tuple[int, Submission]], asked: SubmitOptions
    ) -> tuple[dict[SubmitOptions, tuple[list[int], list[Submission]]], list[tuple[int, StreamAnswer]]]:
        """The valid submissions with their numbers, by their options, and the answers to all others."""
        validator = self._shared.validator
        rejected: list[tuple[int, StreamAnswer]] = []
        read: list[tuple[int, tuple[Submission, SubmitOptions]]] = []
        for number, submission in batch:
            try:
                read.append((number, validator.read_signed(submission, asked, self._caller)))
            except BadRequest as error:
                rejected.append((number, _rejected(error)))
        groups: dict[SubmitOptions, tuple[list[int], list[Submission]]] = {}
        errors = validator.signature_errors([submission for _, (submission, _) in read])
        for (number, (submission, options)), bad_signature in zip(read, errors, strict=True):
            if bad_signature is None:
                numbers, submissions = groups.setdefault(options, ([], []))
                numbers.append(number)
                submissions.append(submission)
            else:
                rejected.append((number, _rejected(bad_signature)))
        return groups, rejected

    async def _send(self, frame: FromServer) -> None:
        """Raises ConnectionError when the client is gone, or takes nothing for too long."""
        try:
            async with asyncio.timeout(self._shared.settings.stream_read_max_s):
                await self._socket.send_bytes(encoder.encode(frame))
        except TimeoutError:
            await self._socket.close(code=WSCloseCode.POLICY_VIOLATION, drain=False)
            raise ConnectionResetError("the client does not read its answers") from None

    async def _finish(self, error: BadRequest) -> None:
        try:
            await self._send(Closing(error.code.name, printable(error.detail)))
            await self._socket.close(code=WSCloseCode.POLICY_VIOLATION)
        except ConnectionError:
            pass

    def _done(self, task: asyncio.Task[None], held: Sequence[Reservation] = ()) -> None:
        _release(held)
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, ConnectionError):
            write = self._shared.limits.failed.write
            write(_log.error, "stream_failed", request_id=self._request_id, exc_info=error)
            self._tasks.add(closing := asyncio.create_task(self._close()))
            closing.add_done_callback(self._tasks.discard)

    async def _close(self) -> None:
        await self._socket.close(code=WSCloseCode.INTERNAL_ERROR)


def _release(held: Iterable[Reservation]) -> None:
    for part in held:
        part.release()


def _in_frames(answers: list[tuple[int, StreamAnswer]]) -> Iterator[list[tuple[int, StreamAnswer]]]:
    """All answers, in order: as many at a time as a frame holds, at least one."""
    begun, size_bytes = 0, 0
    for place, (_, answer) in enumerate(answers):
        answer_bytes = ANSWER_BYTES + _CONFLICT_BYTES * len(getattr(answer, "conflicts", ()))
        if place > begun and size_bytes + answer_bytes > FRAME_MAX_BYTES:
            yield answers[begun:place]
            begun, size_bytes = place, 0
        size_bytes += answer_bytes
    yield answers[begun:]


def _too_old() -> BadRequest:
    return BadRequest("the token of this stream is too old: open another one", Code.TOKEN_INVALID)


def _rejected(error: BadRequest) -> Rejected:
    return Rejected(error.code.name, printable(error.detail))


def _decode(raw: bytes) -> Submissions:
    try:
        return _decoder.decode(raw)
    except UNREADABLE as error:
        raise BadRequest(f"a frame cannot be read: {error}", Code.MALFORMED_REQUEST) from None
