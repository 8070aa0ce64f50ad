"""Admitted: records commands in the shared database before their records are logged, and passes them on.

A command is pending in the database before its record is appended. So the next active knows every submission that was
accepted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from replica.active.answering import Answering
from replica.active.appending import Appender
from replica.active.deduplication import Period, Remembered, period_of
from replica.active.intake import Intake
from replica.active.parts import Parts
from replica.active.publisher import Publisher
from replica.active.waiting import Waiting
from replica.notary.answers import Accepted, Answer, DeduplicationBound, NotNow, Refused
from replica.notary.errors import Code, ValuesRefused
from replica.store.interface import AdmissionResult, Admitted, ParticipantStore

Found = AdmissionResult | Answer
"""What is known of a submission that is to be admitted; or its answer, if it cannot be."""


class Admission:
    """Admits in one statement at a time, each for all submissions that wait."""

    def __init__(
        self,
        parts: Parts,
        store: ParticipantStore,
        *,
        intake: Intake,
        appender: Appender,
        answering: Answering,
        publisher: Publisher,
    ) -> None:
        self._clock = parts.clock
        self._settings = parts.settings
        self._failures = parts.failures
        self._store = store
        self._intake = intake
        self._appender = appender
        self._answering = answering
        self._publisher = publisher
        self.admitting: list[Waiting] = []  # the database is being asked about these, and may know them already
        self.bound = asyncio.Lock()  # no pruning while a statement relies on the bound of what is remembered

    async def run(self) -> None:
        """Admit until the intake stops; ends early only with an error of the store."""
        intake = self._intake
        while not intake.stopping:
            self.admitting = await intake.next_batch()
            if self.admitting:
                await self.admit(self.admitting)
                self.admitting = []
                intake.wake()

    async def admit(self, batch: list[Waiting]) -> None:
        outcomes = await self._ask(batch)
        in_flight = [waiting for waiting, found in outcomes if _is(found, Admitted.IN_FLIGHT)]
        if in_flight and not self._publisher.decided_changes().isdisjoint(w.command.change_id for w in in_flight):
            # decided by the log already, only not published: publish, then the database knows the answer
            await self._publisher.flush()
            again = {id(waiting): found for waiting, found in await self._ask(in_flight)}
            outcomes = [(waiting, again.get(id(waiting), found)) for waiting, found in outcomes]
        failed = self._appender.append([waiting for waiting, found in outcomes if _is(found, Admitted.FRESH)])
        accepted: list[tuple[Waiting, AdmissionResult]] = []
        answers: list[tuple[Waiting, Answer]] = []
        for waiting, outcome in outcomes:
            found = failed.get(id(waiting), outcome)
            if _is(found, Admitted.FRESH):
                if waiting.options.asynchronous and not waiting.options.early:
                    answers.append((waiting, Accepted(waiting.command.submission_id, self._intake.wait_s)))
                continue
            self._intake.budget.leave(1, waiting.states)
            if not isinstance(found, AdmissionResult):
                answers.append((waiting, found))
            elif found.outcome is Admitted.ACCEPTED:
                accepted.append((waiting, found))
            elif found.outcome is Admitted.REUSED:
                tx_id = waiting.command.tx_id
                answers.append((waiting, Refused(Code.COMMAND_ID_REUSED.name, tx_id, earlier=found.earlier)))
            else:
                answers.append((waiting, self._in_flight()))
        self._answering.send(answers)
        if accepted:
            self._answering.answer_accepted(accepted)

    async def _ask(self, batch: list[Waiting]) -> list[tuple[Waiting, Found]]:
        """Ask the database about each, in one statement, whatever deduplication periods the senders chose.

        Among several submissions of one command the first one's period counts; those with another period are too early.
        """
        async with self.bound:
            asked: list[tuple[Waiting, Period]] = []
            outcomes: list[tuple[Waiting, Found]] = []
            periods: dict[bytes, Period] = {}
            for waiting, period in self.with_periods(batch):
                if not isinstance(period, Period):
                    outcomes.append((waiting, period))
                elif periods.setdefault(waiting.command.change_id, period) == period:
                    asked.append((waiting, period))
                else:
                    outcomes.append((waiting, AdmissionResult(Admitted.IN_FLIGHT)))
            if asked:
                outcomes += await self.ask_together(asked)
        return outcomes

    def with_periods(self, batch: list[Waiting]) -> Iterator[tuple[Waiting, Period | Answer]]:
        """The deduplication period of each; or the answer to those whose period cannot be honoured."""
        publisher, now_us = self._publisher, self._clock.wall_us()
        remembered = Remembered(self._settings.deduplication_max_s, publisher.pruned_to, publisher.pruned_us)
        for waiting in batch:
            try:
                found = period_of(waiting.options, remembered, now_us)
            except Exception as error:  # arithmetic on one caller's figures
                yield waiting, self._failed(waiting, error)
                continue
            if isinstance(found, DeduplicationBound):
                code = Code.DEDUPLICATION_PERIOD_TOO_LONG.name
                yield waiting, Refused(code, waiting.command.tx_id, bound=found)
            else:
                waiting.period = found
                yield waiting, found

    async def ask_together(self, part: list[tuple[Waiting, Period]]) -> list[tuple[Waiting, Found]]:
        """One statement; if the database refuses a value, halve the batch until the refused submission is alone."""
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
            return await self.ask_together(part[:middle]) + await self.ask_together(part[middle:])
        return [(waiting, outcome) for (waiting, _), outcome in zip(part, found, strict=True)]

    def _failed(self, waiting: Waiting, error: Exception) -> NotNow:
        return self._failures.answer(waiting.command.submission_id, error)

    def _in_flight(self) -> NotNow:
        detail = "an earlier submission of this command is on its way"
        return NotNow(Code.SUBMISSION_IN_FLIGHT.name, detail, self._intake.wait_s)


def _is(found: Found, outcome: Admitted) -> bool:
    return isinstance(found, AdmissionResult) and found.outcome is outcome
