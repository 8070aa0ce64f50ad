"""Admitted: nothing is recorded anywhere before the log.

The index answers for commands that were accepted before, and the active's memory for those that are on their way. All
others are logged, and the log decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from replica.active.answering import Answering
from replica.active.intake import Intake
from replica.active.parts import Parts
from replica.active.terms import Terms, terms_of
from replica.active.waiting import Waiting
from replica.index.interface import OFFSET_END
from replica.index.newest import newest_acceptances
from replica.link.interface import SubmitOptions
from replica.notary.acceptances import Acceptance, counts, decode_acceptance
from replica.notary.answers import Answer, DeduplicationBound, NotNow, Refused
from replica.notary.codes import Code
from replica.notary.errors import BadRequest, InvariantBroken
from replica.notary.outcomes import CODE_OF
from replica.notary.parties import registration_id
from replica.notary.requests import TIME_MAX_US
from replica.notary.rules import TX_KEY, key_outcome
from replica.notary.terms import decode_canonical
from replica.store.interface import Command


class CommandLog(Protocol):
    """Where admitted submissions are logged."""

    @property
    def commands(self) -> Mapping[bytes, Waiting]:
        """Those that are on their way, by change id."""

    def append(self, admitted: Sequence[Waiting]) -> Sequence[tuple[Waiting, NotNow]]:
        """Log them. Returns the answers of those of which no record can be made."""


class Admission:
    """Admits batch by batch, and waits for nothing."""

    def __init__(
        self,
        parts: Parts,
        *,
        intake: Intake,
        appender: CommandLog,
        answering: Answering,
    ) -> None:
        self._clock = parts.clock
        self._settings = parts.settings
        self._failures = parts.failures
        self._index = parts.index
        self._follower = parts.follower
        self._intake = intake
        self._appender = appender
        self._answering = answering
        self.admitting: list[Waiting] = []
        """Neither answered nor logged yet."""

    async def run(self) -> None:
        """Admit until the intake stops; ends early only with an error of the index."""
        intake = self._intake
        while not intake.stopping:
            self.admitting = await intake.next_batch()
            self.admit(self.admitting)
            self.admitting = []
            intake.wake()
            await self._clock.sleep_s(0)  # let heartbeat, follower and front ends in between two batches

    def admit(self, batch: Sequence[Waiting]) -> None:
        """Answer what is known already, and log the rest."""
        refused = self._set_terms(batch)
        self.decide([waiting for waiting in batch if waiting.terms is not None], refused)

    def decide(self, due: Sequence[Waiting], answers: Sequence[tuple[Waiting, Answer]] = ()) -> None:
        """Answer what was accepted or is on its way, and log the rest. `answers`: of others, to be sent as well."""
        answers = list(answers)
        on_its_way = self._appender.commands
        fresh: dict[bytes, Waiting] = {}
        accepted: list[tuple[Waiting, int]] = []
        for waiting, acceptance in zip(due, self.find(due), strict=True):
            change_id = waiting.command.change_id
            if change_id in on_its_way or change_id in fresh:
                answers.append((waiting, self._in_flight()))
            elif acceptance is not None:
                accepted.append((waiting, self._accepted(waiting.command)))
            else:
                fresh[change_id] = waiting
        if fresh:
            refused = self._refuse_keys(list(fresh.values()))
            for waiting, answer in refused:
                del fresh[waiting.command.change_id]
                answers.append((waiting, answer))
        answers += self._appender.append(list(fresh.values()))
        for waiting in (*[waiting for waiting, _ in answers], *[waiting for waiting, _ in accepted]):
            self._intake.budget.leave(1, waiting.states)
        self._answering.send(answers)
        if accepted:
            self._answering.answer_accepted(accepted)

    def find(self, batch: Sequence[Waiting]) -> list[Acceptance | None]:
        """The acceptance by which each submission is answered; None where the log must judge it.

        Only a success is answered: it is true at any time. A refusal could be out of date, at an active that is deposed
        and has not noticed. A period is judged by the later of this clock and the newest time in the log: not earlier
        than the log would.
        """
        position = self._follower.position
        now_us = max(self._clock.wall_us(), 0 if position is None else position.stamp_us)
        changes = [waiting.command.change_id for waiting in batch]
        newest = newest_acceptances(self._index, changes, [TIME_MAX_US] * len(batch)) if batch else []
        if not any(newest):
            return [None] * len(batch)
        found: list[Acceptance | None] = []
        for waiting, value in zip(batch, newest, strict=True):
            acceptance, terms = (None if value is None else decode_acceptance(value)), waiting.terms
            assert terms is not None  # only what has terms is looked up
            answers = (
                acceptance is not None
                and is_same(waiting.command, acceptance)
                and counts(acceptance, now_us, terms.deduplication_us, terms.after)
            )
            found.append(acceptance if answers else None)
        return found

    def _refuse_keys(self, fresh: Sequence[Waiting]) -> list[tuple[Waiting, Answer]]:
        """The answers of those whose key is not in force, as far as this replica has read the log.

        A filter against floods only: what passes is judged by the log. A retry of what was notarised was answered
        before, and needs no key in force.
        """
        ids = [_registration_of(waiting) for waiting in fresh]
        distinct = list(dict.fromkeys(one for one in ids if one is not None))
        found = self._index.newest(distinct, [OFFSET_END] * len(distinct))
        newest = dict(zip(distinct, found, strict=True))
        position = self._follower.position
        now_us = max(self._clock.wall_us(), 0 if position is None else position.stamp_us)
        refused: list[tuple[Waiting, Answer]] = []
        for waiting, key in zip(fresh, ids, strict=True):
            outcome = None if key is None else key_outcome(newest[key], now_us)
            if outcome is not None:
                refused.append((waiting, Refused(CODE_OF[outcome], waiting.command.tx_id)))
        return refused

    def _set_terms(self, batch: Sequence[Waiting]) -> list[tuple[Waiting, Answer]]:
        """Set the terms, and return the answers of those whose terms cannot be honoured."""
        refused: list[tuple[Waiting, Answer]] = []
        options: SubmitOptions | None = None  # of the terms found last: what came together shares them
        terms: Terms | None = None
        for waiting in batch:
            if waiting.options is options:
                waiting.terms = terms
                continue
            try:
                found = self._terms(waiting.options)
            except (ValueError, OverflowError) as error:  # arithmetic on one caller's figures
                refused.append((waiting, self._failures.answer(waiting.command.submission_id, error)))
                continue
            if isinstance(found, DeduplicationBound):
                code = Code.DEDUPLICATION_PERIOD_TOO_LONG.name
                refused.append((waiting, Refused(code, waiting.command.tx_id, bound=found)))
            elif isinstance(found, NotNow):
                refused.append((waiting, found))
            else:
                waiting.terms = found
                options, terms = waiting.options, found
        return refused

    def _terms(self, options: SubmitOptions) -> Terms | DeduplicationBound | NotNow:
        """The terms of a submission, unless nobody can know yet what lies above the ledger offset that it names."""
        position, after = self._follower.position, options.deduplication_after
        end = 0 if position is None else position.ledger_offset
        if after is not None and after > end:
            detail = f"the ledger ends at {end}, before {after}"
            return NotNow(Code.OFFSET_AFTER_END.name, detail, self._settings.retry_after_s)
        return terms_of(options, self._settings.deduplication_max_s)

    def _accepted(self, command: Command) -> int:
        """Where the transaction of a command that was accepted with it was notarised."""
        (value,) = self._index.lookup([TX_KEY + command.tx_id])
        if value is None:
            raise InvariantBroken(f"command {command.command_id!r} is accepted, and its transaction is nowhere")
        return int.from_bytes(value[-8:], "big")

    def _in_flight(self) -> NotNow:
        """The answer to a submission of a command that is on its way, whatever its transaction: the other one may be
        refused by the log yet."""
        detail = "an earlier submission of this command is on its way"
        return NotNow(Code.SUBMISSION_IN_FLIGHT.name, detail, self._intake.wait_s)


def _registration_of(waiting: Waiting) -> bytes | None:
    """What the registrations of the request's key have in common; None for a request that no reader can read."""
    try:
        request = decode_canonical(waiting.submission.request).request
    except BadRequest:
        return None
    return registration_id(request.party, waiting.submission.public_key)


def is_same(command: Command, acceptance: Acceptance) -> bool:
    """Whether a command was accepted with just this transaction and content."""
    return (acceptance.tx_id, acceptance.content_digest) == (command.tx_id, command.content_digest)
