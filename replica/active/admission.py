"""Admission: bounds what is in flight, serves users in turns, records commands before their records are logged, and
logs them.

A command is pending in the shared database before its record is appended, so that whoever is active next knows of
every submission that was accepted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

from ha.clock import Clock
from replica.active.admission_budget import AdmissionBudget, weight_of
from replica.active.deduplication import Period, Remembered, period_of
from replica.active.estimate import CompletionEstimate
from replica.active.failures import SubmissionFailures
from replica.active.fair_queue import FairQueue
from replica.active.publisher import Publisher
from replica.active.waiting import Waiting, send
from replica.link.interface import Replies, Terms
from replica.notary.answers import Accepted, Answer, DeduplicationBound, NotNow, Refused
from replica.notary.canonical import change_id, summarise
from replica.notary.errors import Code, ValuesRefused
from replica.notary.requests import Submission, check_command
from replica.settings import CoreSettings
from replica.store.interface import AdmissionResult, Admitted, Command, ParticipantStore

Found = AdmissionResult | Answer
"""What is known of a submission that is to be admitted; or its answer, if it cannot be."""


class Admission:
    """The queue of one activation between front ends and log."""

    def __init__(
        self,
        *,
        store: ParticipantStore,
        publisher: Publisher,
        clock: Clock,
        settings: CoreSettings,
        budget: AdmissionBudget,
        estimate: CompletionEstimate,
        failures: SubmissionFailures,
        append: Callable[[Sequence[Waiting]], dict[int, NotNow]],
        answer_accepted: Callable[[Sequence[tuple[Waiting, AdmissionResult]]], None],
    ) -> None:
        self._store = store
        self._publisher = publisher
        self._clock = clock
        self._settings = settings
        self._budget = budget
        self._estimate = estimate
        self._failures = failures
        self._append = append
        self._answer_accepted = answer_accepted
        self._queue: FairQueue[Waiting] = FairQueue(settings.user_queue_max, settings.user_states_max)
        self.admitting: list[Waiting] = []  # what the database is being told of, and may know already
        self._may_go = asyncio.Event()  # something is queued, and the pipeline has room
        self._stopping = False
        self.bound = asyncio.Lock()  # of what is remembered: nobody prunes while somebody is asked for by it

    def offer(self, batch: Sequence[tuple[int, Submission]], replies: Replies, terms: Terms) -> None:
        """Queue a front end's submissions; those past the bounds are answered at once."""
        refused: list[tuple[int, Answer]] = []
        queued: list[int] = []
        now_us = self._clock.wall_us()
        wait_s = self._estimate.wait_s(self._budget.states)
        for ticket, submission in batch:
            try:
                waiting = _waiting(replies, ticket, submission, terms, now_us)
            except Exception as error:  # what the front end let through is its sender's affair alone
                refused.append((ticket, self._failures.answer(submission.submission_id, error)))
                continue
            user, states = submission.user_id, waiting.states
            if not self._queue.has_room(user, states):
                refused.append((ticket, self._not_now(Code.USER_OVERLOADED, f"{user!r} has as much queued as one may")))
                continue
            if not self._budget.enter(states):
                refused.append((ticket, self._overloaded()))
                continue
            self._queue.push(user, waiting, states)
            queued.append(ticket)
        if refused:
            replies.send(refused)
        if wait_s > self._settings.interim_from_s and not terms.asynchronous and queued:
            replies.wait(queued, wait_s)
        self.wake()

    def wake(self) -> None:
        """Look again whether the queue may go on: something was queued, or left the pipeline."""
        settings, budget = self._settings, self._budget
        in_pipeline = budget.submissions - len(self._queue)
        states_in_pipeline = budget.states - self._queue.states
        if self._queue and in_pipeline < settings.pipeline_max and states_in_pipeline < settings.pipeline_states_max:
            self._may_go.set()
        elif not self._stopping:
            self._may_go.clear()

    async def run(self) -> None:
        """Admit until stopped; ends early only with an error of the store."""
        while not self._stopping:
            await self._may_go.wait()
            if self._may_linger():
                await self._clock.sleep_s(self._settings.admit_linger_s)
            self.admitting = self._take()
            self.wake()
            if self.admitting:
                await self._admit(self.admitting)
                self.admitting = []
                self.wake()

    def _take(self) -> list[Waiting]:
        """The next batch in the users' turns, as far as the pipeline has room."""
        settings, queue, budget = self._settings, self._queue, self._budget
        room = settings.pipeline_max - (budget.submissions - len(queue))
        states_room = settings.pipeline_states_max - (budget.states - queue.states)
        return queue.take(min(room, settings.admit_batch_max), states_room)

    @property
    def queued(self) -> int:
        """Submissions that wait for the database round trip of their admission."""
        return len(self._queue)

    def _may_linger(self) -> bool:
        """Under load, a batch that is not full yet is worth waiting for: each costs a round trip and a write."""
        settings = self._settings
        busy = self._budget.submissions >= settings.admit_linger_from
        return busy and len(self._queue) < settings.admit_batch_max and not self._stopping

    def stop(self) -> None:
        """Let `run` end once the batch in hand is done with."""
        self._stopping = True
        self._may_go.set()

    def close_queue(self) -> list[Waiting]:
        """Empty the queue, and return what was in it: the database was not told of it."""
        self._may_go.clear()
        return self._queue.clear()

    async def _admit(self, batch: list[Waiting]) -> None:
        outcomes = await self._ask(batch)
        in_flight = [waiting for waiting, found in outcomes if _is(found, Admitted.IN_FLIGHT)]
        if in_flight and not self._publisher.decided_changes().isdisjoint(w.command.change_id for w in in_flight):
            # decided by the log already, only not published: publish, then the database knows the answer
            await self._publisher.flush()
            again = dict(zip(map(id, in_flight), (found for _, found in await self._ask(in_flight)), strict=True))
            outcomes = [(waiting, again.get(id(waiting), found)) for waiting, found in outcomes]
        failed = self._append([waiting for waiting, found in outcomes if _is(found, Admitted.FRESH)])
        accepted: list[tuple[Waiting, AdmissionResult]] = []
        answers: list[tuple[Waiting, Answer]] = []
        for waiting, outcome in outcomes:
            found = failed.get(id(waiting), outcome)
            if _is(found, Admitted.FRESH):
                if waiting.terms.asynchronous:
                    answers.append((waiting, Accepted(waiting.command.submission_id, self._wait_s())))
                continue
            self._budget.leave(1, waiting.states)
            if not isinstance(found, AdmissionResult):
                answers.append((waiting, found))
            elif found.outcome is Admitted.ACCEPTED:
                accepted.append((waiting, found))
            elif found.outcome is Admitted.REUSED:
                tx_id = waiting.command.tx_id
                answers.append((waiting, Refused(Code.COMMAND_ID_REUSED.name, tx_id, earlier=found.earlier)))
            else:
                answers.append((waiting, self._in_flight()))
        send(answers)
        if accepted:
            self._answer_accepted(accepted)

    async def _ask(self, batch: list[Waiting]) -> list[tuple[Waiting, Found]]:
        """What the database says of each, in one statement, whatever deduplication periods their senders chose.

        Of several submissions of one command the first one's period counts; those with another one come too early.
        """
        async with self.bound:
            asked: list[tuple[Waiting, Period]] = []
            outcomes: list[tuple[Waiting, Found]] = []
            periods: dict[bytes, Period] = {}
            for waiting, period in self._with_periods(batch):
                if not isinstance(period, Period):
                    outcomes.append((waiting, period))
                elif periods.setdefault(waiting.command.change_id, period) == period:
                    asked.append((waiting, period))
                else:
                    outcomes.append((waiting, AdmissionResult(Admitted.IN_FLIGHT)))
            if asked:
                outcomes += await self._ask_together(asked)
        return outcomes

    def _with_periods(self, batch: list[Waiting]) -> Iterator[tuple[Waiting, Period | Answer]]:
        """The deduplication period of each; or the answer to those whose period cannot be honoured."""
        publisher, now_us = self._publisher, self._clock.wall_us()
        remembered = Remembered(self._settings.deduplication_max_s, publisher.pruned_to, publisher.pruned_us)
        for waiting in batch:
            try:
                found = period_of(waiting.terms, remembered, now_us)
            except Exception as error:  # arithmetic on one caller's figures
                yield waiting, self._failed(waiting, error)
                continue
            if isinstance(found, DeduplicationBound):
                code = Code.DEDUPLICATION_PERIOD_TOO_LONG.name
                yield waiting, Refused(code, waiting.command.tx_id, bound=found)
            else:
                waiting.period = found
                yield waiting, found

    async def _ask_together(self, part: list[tuple[Waiting, Period]]) -> list[tuple[Waiting, Found]]:
        """One statement; by halves, if the database refuses a value of somebody's, until that one stands alone."""
        try:
            found = await self._store.admit(
                [waiting.command for waiting, _ in part],
                [period.since_us for _, period in part],
                [period.after for _, period in part],
            )
        except ValuesRefused as error:
            if len(part) == 1:
                waiting, _ = part[0]
                return [(waiting, self._failed(waiting, error))]
            middle = len(part) // 2
            return await self._ask_together(part[:middle]) + await self._ask_together(part[middle:])
        return [(waiting, outcome) for (waiting, _), outcome in zip(part, found, strict=True)]

    def _failed(self, waiting: Waiting, error: Exception) -> NotNow:
        return self._failures.answer(waiting.command.submission_id, error)

    def _overloaded(self) -> NotNow:
        detail = f"{self._budget.submissions} submissions with {self._budget.states} states are in flight"
        return self._not_now(Code.OVERLOADED, detail)

    def _in_flight(self) -> NotNow:
        return self._not_now(Code.SUBMISSION_IN_FLIGHT, "an earlier submission of this command is on its way")

    def _not_now(self, code: Code, detail: str) -> NotNow:
        return NotNow(code.name, detail, self._wait_s())

    def _wait_s(self) -> float:
        return self._estimate.wait_s(self._budget.states)


def _waiting(replies: Replies, ticket: int, submission: Submission, terms: Terms, now_us: int) -> Waiting:
    """The submission with what the core needs to know of it. Raises all sorts if the front end let nonsense through.

    The request is not read whole, which would cost a tenth of what a submission costs here: what no reader of the log
    takes for a request is answered when it is read back.
    """
    tx_id, digest, states_count = summarise(submission.request)
    user, command_id, act_as = submission.user_id, submission.command_id, submission.act_as
    check_command(user, command_id, act_as, submission.submission_id)
    command = Command(
        change_id(user, command_id, act_as),
        user,
        command_id,
        act_as,
        submission.submission_id,
        tx_id,
        digest,
        now_us,
    )
    return Waiting(replies, ticket, submission, command, weight_of(submission, states_count), terms)


def _is(found: Found, outcome: Admitted) -> bool:
    return isinstance(found, AdmissionResult) and found.outcome is outcome
