"""Admitted, under rules that judge commands in the log: nothing is recorded anywhere before the log.

The index answers for commands that were accepted before, and the active's memory for those that are on their way. All
others are logged, and the log decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from replica.active.answering import Answering
from replica.active.appending import Appender
from replica.active.intake import Intake
from replica.active.parts import Parts
from replica.active.publisher import Publisher
from replica.active.terms import Terms, terms_after, terms_of
from replica.active.waiting import Waiting, send
from replica.notary.acceptances import Acceptance, counts, decode_acceptance
from replica.notary.answers import Answer, DeduplicationBound, Earlier, NotNow, Refused
from replica.notary.errors import Code, InvariantBroken
from replica.notary.records import NO_OFFSET
from replica.notary.requests import TIME_MAX_US
from replica.notary.rules import TX_KEY
from replica.store.interface import AdmissionResult, Admitted, Command, ParticipantStore, is_for_the_log


class LogAdmission:
    """Admits batch by batch. Only a submission that names a ledger offset asks the database, for its log offset."""

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
        self._index = parts.index
        self._follower = parts.follower
        self._store = store
        self._intake = intake
        self._appender = appender
        self._answering = answering
        self._publisher = publisher
        self.admitting: list[Waiting] = []
        self.bound = asyncio.Lock()  # see Admission; nothing here relies on what is pruned

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
        """Answer what is known already, and log the rest."""
        answers = await self.set_terms(batch)
        due = [waiting for waiting in batch if waiting.terms is not None]
        fresh: list[Waiting] = []
        accepted: list[tuple[Waiting, AdmissionResult]] = []
        on_their_way = dict(self._appender.commands)
        for waiting, acceptance in zip(due, self.find(due), strict=True):
            other = on_their_way.get(waiting.command.change_id)
            if other is not None:
                answers.append((waiting, self._beside(waiting, other.command)))
            elif acceptance is None:
                fresh.append(waiting)
                on_their_way[waiting.command.change_id] = waiting
            elif is_same(waiting.command, acceptance):
                accepted.append((waiting, self._accepted(waiting.command)))
            else:
                earlier = Earlier(None, None)
                answers.append((waiting, Refused(Code.COMMAND_ID_REUSED.name, waiting.command.tx_id, earlier=earlier)))
        failed = self._appender.append(fresh)
        answers += [(waiting, failed[id(waiting)]) for waiting in fresh if id(waiting) in failed]
        for waiting in (*[waiting for waiting, _ in answers], *[waiting for waiting, _ in accepted]):
            self._intake.budget.leave(1, waiting.states)
        send(answers)
        if accepted:
            self._answering.answer_accepted(accepted)

    def find(self, batch: Sequence[Waiting]) -> list[Acceptance | None]:
        """The acceptance that counts for each submission; None where there is none, or where the log must judge it.

        A period is judged by the later of this clock and the newest time in the log: not earlier than the log would.
        """
        position = self._follower.position
        now_us = max(self._clock.wall_us(), 0 if position is None else position.stamp_us)
        changes = [waiting.command.change_id for waiting in batch]
        newest = self._index.commands.newest(changes, [TIME_MAX_US] * len(batch)) if batch else []
        found: list[Acceptance | None] = []
        for waiting, value in zip(batch, newest, strict=True):
            acceptance, terms = (None if value is None else decode_acceptance(value)), waiting.terms
            assert terms is not None  # set_terms
            if acceptance is not None and not counts(acceptance, now_us, terms.deduplication_us, terms.after_offset):
                acceptance = None
            if acceptance is not None and is_for_the_log(waiting.command, acceptance.tx_id, acceptance.content_digest):
                acceptance = None
            found.append(acceptance)
        return found

    async def set_terms(self, batch: list[Waiting]) -> list[tuple[Waiting, Answer]]:
        """Set the terms of each; returns the answers of those whose terms cannot be honoured."""
        refused: list[tuple[Waiting, Answer]] = []
        for waiting in batch:
            after = waiting.options.deduplication_after
            try:
                found = (
                    terms_of(waiting.options, self._settings.deduplication_max_s)
                    if after is None
                    else await self._terms_after(after)
                )
            except (ValueError, OverflowError) as error:  # arithmetic on one caller's figures
                refused.append((waiting, self._failures.answer(waiting.command.submission_id, error)))
                continue
            if isinstance(found, Terms):
                waiting.terms = found
            elif isinstance(found, DeduplicationBound):
                code = Code.DEDUPLICATION_PERIOD_TOO_LONG.name
                refused.append((waiting, Refused(code, waiting.command.tx_id, bound=found)))
            else:
                refused.append((waiting, found))
        return refused

    async def _terms_after(self, ledger_offset: int) -> Terms | NotNow:
        """The log offset of the completion there. Every acceptance counts for one whose completion is pruned."""
        publisher = self._publisher
        if ledger_offset <= publisher.pruned_to:
            return terms_after(NO_OFFSET)
        if ledger_offset > publisher.last_ledger_offset:
            detail = f"the ledger ends at {publisher.last_ledger_offset}, before {ledger_offset}"
            return NotNow(Code.OFFSET_AFTER_END.name, detail, self._settings.retry_after_s)
        queued = publisher.log_offset_of(ledger_offset)
        if queued is not None:
            return terms_after(queued)
        stored = await self._store.log_offset_of(ledger_offset)
        return terms_after(NO_OFFSET if stored is None else stored)  # None: pruned just now

    def _accepted(self, command: Command) -> AdmissionResult:
        """The recorded success of a command that was accepted with this transaction."""
        (value,) = self._index.lookup([TX_KEY + command.tx_id])
        if value is None:
            raise InvariantBroken(f"command {command.command_id!r} is accepted, and its transaction is nowhere")
        return AdmissionResult(Admitted.ACCEPTED, int.from_bytes(value[-8:], "big"), Earlier(None, None))

    def _beside(self, waiting: Waiting, other: Command) -> Answer:
        """The answer to a submission of a command that is on its way."""
        command = waiting.command
        same = (other.tx_id, other.content_digest) == (command.tx_id, command.content_digest)
        if same or is_for_the_log(command, other.tx_id, other.content_digest):
            detail = "an earlier submission of this command is on its way"
            return NotNow(Code.SUBMISSION_IN_FLIGHT.name, detail, self._intake.wait_s)
        earlier = Earlier(other.submission_id, None)
        return Refused(Code.COMMAND_ID_REUSED.name, command.tx_id, earlier=earlier)


def is_same(command: Command, acceptance: Acceptance) -> bool:
    """Whether a command was accepted with just this transaction and content."""
    return (acceptance.tx_id, acceptance.content_digest) == (command.tx_id, command.content_digest)
