"""A client that retries until each answer is final, and records all requests and answers for the checker."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from time import monotonic_ns
from types import TracebackType
from typing import Self, TypeVar

from msgspec.structs import replace

from ledger_api.client import NotaryClient, OnWait, Result, RetryPolicy
from ledger_api.client.endpoints import Given
from replica.checker.history import (
    ConflictText,
    Ending,
    HistoryWriter,
    Invoke,
    Ok,
    Refused,
    Unknown,
    invoke_submission,
)
from replica.notary import answers
from replica.notary.codes import Code
from replica.notary.receipts import receipt_to_document
from replica.notary.requests import Submission, format_state_ref
from replica.notary.rules import Usage
from replica.notary.terms import decode_canonical

ONE_ATTEMPT = RetryPolicy(deadline_s=0.0, attempt_max_s=3.0)  # each attempt is an operation of the history
DEFAULT_POLICY = RetryPolicy(deadline_s=30.0)

Asked = TypeVar("Asked", Submission, bytes)
_Ask = Callable[[list[Asked], OnWait], Awaitable[list[Result]]]


class Attempts:
    """The attempts of one call, each an operation of the history: whichever of them was logged has its own.

    A call that turns to another endpoint, or renews its token, sends the same again.
    """

    def __init__(
        self, history: HistoryWriter, process: str, operations: Iterator[int], asked: Sequence[Submission | bytes]
    ) -> None:
        self._history = history
        self._process = process
        self._operations = operations
        self._asked = asked
        self._open: list[int] = []  # operations of the newest attempt

    @contextmanager
    def of_this_call(self) -> Iterator[None]:
        """What `note_exchange` is told meanwhile, in this context, are attempts of this call."""
        before = _call.set(self)
        try:
            yield
        finally:
            _call.reset(before)

    def begin(self) -> None:
        """It is sent, perhaps again: then nobody knows what became of it before."""
        at_ns = monotonic_ns()
        for number in self._open:
            self._history.write(Unknown(self._process, number, at_ns, Code.OUTCOME_UNKNOWN.name))
        self._open = [next(self._operations) for _ in self._asked]
        for number, one in zip(self._open, self._asked, strict=True):
            self._history.write(self._invocation(number, one))

    def end(self, endings: Sequence[Ending]) -> None:
        """What was answered, in order, is of the newest attempt. The operations' numbers are put in here."""
        if not self._open:  # answered before anything was sent
            self.begin()
        for number, ending in zip(self._open, endings, strict=True):
            self._history.write(replace(ending, op=number))
        self._open = []

    def _invocation(self, number: int, asked: Submission | bytes) -> Invoke:
        if isinstance(asked, bytes):
            return Invoke(self._process, number, monotonic_ns(), asked.hex())
        request = decode_canonical(asked.request).request
        return invoke_submission(self._process, number, monotonic_ns(), request, asked)


_call: ContextVar[Attempts | None] = ContextVar("attempts of this call", default=None)


def note_exchange() -> None:
    """For `NotaryClient.on_exchange`."""
    attempts = _call.get()
    if attempts is not None:
        attempts.begin()


class RecordingClient:
    """Use it as `async with RecordingClient(endpoint, history, "demo") as client`.

    `process` names this client in the history: no other client of the same history may have the name. Times are this
    host's monotonic clock.
    """

    def __init__(
        self,
        endpoint: Given,
        history: HistoryWriter,
        process: str,
        policy: RetryPolicy = DEFAULT_POLICY,
        *,
        connections_max: int = 100,
    ) -> None:
        self._client = NotaryClient(endpoint, ONE_ATTEMPT, connections_max=connections_max)
        self._client.on_exchange(note_exchange)
        self._history = history
        self._process = process
        self._policy = policy
        self._operations = itertools.count()
        self._random = random.Random().random  # noqa: S311 (spreads retries; no secret)
        self.on_answer: Callable[[Result, int], None] = lambda result, at_ns: None  # called for each attempt's answer

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.__aexit__(kind, error, trace)

    async def submit(self, submission: Submission) -> Result:
        """Submit one until its answer is final; a NotNow when the policy's deadline came first."""
        return (await self._until_final([submission], self._submit_one))[0]

    async def submit_batch(self, submissions: Sequence[Submission]) -> list[Result]:
        """Submit several in one call; those without a final answer are sent again. Results in order."""
        return await self._until_final(list(submissions), self._client.submit_batch)

    async def look_up(self, tx_id: bytes) -> Result:
        """Ask whether a transaction was notarised until the answer is final."""
        return (await self._until_final([tx_id], self._look_up_one))[0]

    async def submit_early(self, submission: Submission) -> Result | answers.Accepted | answers.AcceptedEarly:
        """One attempt that takes a place in the log for an answer; its outcome stays open in the history."""
        attempts = self._attempts_at([submission])
        with attempts.of_this_call():
            answer = await self._client.submit_early(submission)
        at_ns = monotonic_ns()
        if isinstance(answer, answers.Accepted | answers.AcceptedEarly):
            attempts.end([Unknown(self._process, 0, at_ns, type(answer).__name__)])
        else:
            attempts.end([event_of(self._process, 0, at_ns, answer)])
        return answer

    async def _submit_one(self, submissions: list[Submission], on_wait: OnWait) -> list[Result]:
        return [await self._client.submit(submissions[0], on_wait)]

    async def _look_up_one(self, tx_ids: list[bytes], on_wait: OnWait) -> list[Result]:
        return [await self._client.look_up(tx_ids[0])]

    async def _until_final(self, asked: list[Asked], ask: _Ask[Asked]) -> list[Result]:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._policy.deadline_s
        results: dict[int, Result] = {}
        missing = list(range(len(asked)))
        for attempt in itertools.count():
            answered = await self._attempt([asked[place] for place in missing], ask)
            results.update(zip(missing, answered, strict=True))
            estimates_s = [answer.retry_after_s for answer in answered if isinstance(answer, answers.NotNow)]
            missing = [place for place in missing if isinstance(results[place], answers.NotNow)]
            delay_s = self._policy.delay_s(attempt, max(estimates_s, default=0.0), self._random())
            if not missing or loop.time() + delay_s > deadline_s:
                break
            await asyncio.sleep(delay_s)
        return [results[place] for place in range(len(asked))]

    async def _attempt(self, asked: list[Asked], ask: _Ask[Asked]) -> list[Result]:
        """Send once to each endpoint at most, and record requests and answers. A cancelled attempt stays open in the
        history."""
        attempts = self._attempts_at(asked)
        estimates_s: list[float] = []
        with attempts.of_this_call():
            answered = await ask(asked, estimates_s.append)
        at_ns = monotonic_ns()
        estimate_s = estimates_s[0] if estimates_s else None  # a caller would have acted on the first one
        attempts.end([replace(event_of(self._process, 0, at_ns, one), estimate_s=estimate_s) for one in answered])
        for answer in answered:
            self.on_answer(answer, at_ns)
        return answered

    def _attempts_at(self, asked: Sequence[Submission | bytes]) -> Attempts:
        return Attempts(self._history, self._process, self._operations, asked)


def event_of(process: str, number: int, at_ns: int, answer: Result) -> Ending:
    """The history event of an answer."""
    match answer:
        case answers.Notarised():
            return Ok(
                process,
                number,
                at_ns,
                answer.content_digest.hex(),
                answer.log_offset,
                answer.record_offset,
                answer.duplicate,
                receipt_to_document(answer.receipt),
            )
        case answers.NotNow():
            return Unknown(process, number, at_ns, answer.code)
        case answers.Refused():
            conflicts = tuple(
                ConflictText(
                    format_state_ref(found.state),
                    found.consumed_by_hash.hex(),
                    "input" if found.usage is Usage.INPUT else "reference",
                )
                for found in answer.conflicts
            )
            return Refused(process, number, at_ns, answer.code, answer.record_offset, conflicts, answer.judged_us)
        case _:  # a problem for which the request never reached the notary
            return Refused(process, number, at_ns, answer.code)
