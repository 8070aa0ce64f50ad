"""The requests of the demo, and the answers that they must get: each phase counts its correct answers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from time import monotonic

from ledger_api.client import Party, Result
from replica.cli.demo.requests import DemoRequest
from replica.local.kept import Say
from replica.local.recording import RecordingClient
from replica.notary.answers import Notarised, Refused
from replica.notary.codes import Code
from replica.notary.requests import TX_ID_BYTES, Submission, state_ref
from replica.notary.rules import Conflict, Usage

BATCH = 100
BATCHES_AT_A_TIME = 4
SINGLES_AT_A_TIME = 64
PROGRESS_EVERY_S = 1.0
EXAMPLES_MAX = 5

Verify = Callable[[DemoRequest, Result], bool]


@dataclass(slots=True)
class PhaseResult:
    """The result of a phase: `expected` of `count` answers were correct; examples of the others."""

    title: str
    count: int
    expected: int = 0
    took_s: float = 0.0
    wrong: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether every answer was as it must be."""
        return self.expected == self.count

    def note(self, right: bool, request: DemoRequest, answer: Result) -> None:
        """Count one answer."""
        if right:
            self.expected += 1
        elif len(self.wrong) < EXAMPLES_MAX:
            self.wrong.append(f"{request.tx_id.hex()}: {answer!r:.500}")


class Phases:
    """The phases, in their order. `offsets`: where each transaction was first notarised."""

    def __init__(self, client: RecordingClient, parties: Sequence[Party], requests: Sequence[DemoRequest]) -> None:
        self._client = client
        self._parties = parties
        self._requests = requests
        self.offsets: dict[bytes, int] = {}

    async def notarise(self, say: Say) -> PhaseResult:
        """Every request once, half of them in batches and half one by one: each must be notarised."""

        def verify(request: DemoRequest, answer: Result) -> bool:
            if not isinstance(answer, Notarised):
                return False
            self.offsets[request.tx_id] = answer.log_offset
            return True

        asked = [(request, self._sign(request, request.tx_id, request.inputs)) for request in self._requests]
        return await self._ask("notarise", asked, verify, say)

    async def resubmit(self, say: Say) -> PhaseResult:
        """Every request again under a new command: the same success, at the same place in the log."""
        asked = [(one, self._sign(one, one.tx_id, one.inputs, _new_command())) for one in self._requests]
        return await self._ask("resubmit", asked, self._same_success, say)

    async def double_spend(self, say: Say) -> PhaseResult:
        """The inputs of every request under a new id: a conflict that names the winner of each of them."""
        asked = [(one, self._sign(one, os.urandom(TX_ID_BYTES), one.inputs)) for one in self._requests if one.inputs]
        return await self._ask("double-spend", asked, conflicts_with, say)

    async def reuse_ids(self, say: Say) -> PhaseResult:
        """Every id with another input: refused, because an id stands for one content for ever."""

        def verify(request: DemoRequest, answer: Result) -> bool:
            return isinstance(answer, Refused) and answer.code == Code.TX_ID_REUSED.name

        asked = [(one, self._sign(one, one.tx_id, (fresh_state(),), _new_command())) for one in self._requests]
        return await self._ask("reuse ids", asked, verify, say)

    async def look_up(self, say: Say) -> PhaseResult:
        """Every id, looked up at the replica that is active now: the same success, at the same place in the log."""
        progress = _Progress(PhaseResult("look up", len(self._requests)), say)

        async def one(request: DemoRequest) -> None:
            answer = await self._client.look_up(request.tx_id)
            progress.note(self._same_success(request, answer), request, answer)

        await _all([partial(one, request) for request in self._requests], SINGLES_AT_A_TIME)
        return progress.finish()

    def _same_success(self, request: DemoRequest, answer: Result) -> bool:
        return isinstance(answer, Notarised) and answer.log_offset == self.offsets.get(request.tx_id)

    def _sign(
        self, request: DemoRequest, tx_id: bytes, inputs: Sequence[bytes], command_id: str | None = None
    ) -> Submission:
        party = self._parties[request.tx_id[0] % len(self._parties)]
        return party.sign(tx_id, inputs, command_id=command_id)

    async def _ask(
        self, title: str, asked: list[tuple[DemoRequest, Submission]], verify: Verify, say: Say
    ) -> PhaseResult:
        progress = _Progress(PhaseResult(title, len(asked)), say)

        async def single(request: DemoRequest, submission: Submission) -> None:
            answer = await self._client.submit(submission)
            progress.note(verify(request, answer), request, answer)

        async def batch(part: Sequence[tuple[DemoRequest, Submission]]) -> None:
            answers = await self._client.submit_batch([submission for _, submission in part])
            for (request, _), answer in zip(part, answers, strict=True):
                progress.note(verify(request, answer), request, answer)

        half = len(asked) // 2
        parts = [asked[at : min(at + BATCH, half)] for at in range(0, half, BATCH)]
        await _all([partial(batch, part) for part in parts], BATCHES_AT_A_TIME)
        await _all([partial(single, *pair) for pair in asked[half:]], SINGLES_AT_A_TIME)
        return progress.finish()


class _Progress:
    """Counts the answers of a phase, and prints its progress every PROGRESS_EVERY_S."""

    def __init__(self, result: PhaseResult, say: Say) -> None:
        self._result = result
        self._say = say
        self._answered = 0
        self._began_s = self._shown_s = monotonic()

    def note(self, right: bool, request: DemoRequest, answer: Result) -> None:
        """Count one answer."""
        self._result.note(right, request, answer)
        self._answered += 1
        now_s = monotonic()
        if now_s - self._shown_s >= PROGRESS_EVERY_S:
            self._shown_s = now_s
            self._show(now_s)

    def finish(self) -> PhaseResult:
        """The phase is over."""
        now_s = monotonic()
        self._result.took_s = now_s - self._began_s
        self._show(now_s)
        return self._result

    def _show(self, now_s: float) -> None:
        rate = self._answered / max(now_s - self._began_s, 1e-3)
        result = self._result
        self._say(
            result.title,
            f"{self._answered:,} of {result.count:,} answered, {result.expected:,} as they must be, {rate:,.0f}/s",
        )


def fresh_state() -> bytes:
    """A state that nobody has consumed."""
    return state_ref(os.urandom(TX_ID_BYTES), 0)


def _new_command() -> str:
    return os.urandom(16).hex()


def conflicts_with(winner: DemoRequest, answer: Result) -> bool:
    """Whether an answer is a conflict over every input, each consumed by this transaction."""
    by = sha256(winner.tx_id).digest()
    expected = {Conflict(state, by, Usage.INPUT) for state in winner.inputs}
    return (
        isinstance(answer, Refused)
        and answer.code == Code.STATE_CONFLICT.name
        and len(answer.conflicts) == len(expected)
        and set(answer.conflicts) == expected
    )


async def _all(jobs: Sequence[Callable[[], Awaitable[None]]], at_a_time: int) -> None:
    """Do every job, so many at a time, in order."""
    left = iter(jobs)

    async def work() -> None:
        for job in left:
            await job()

    async with asyncio.TaskGroup() as group:
        for _ in range(min(at_a_time, len(jobs))):
            group.create_task(work())
