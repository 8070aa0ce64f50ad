"""Answered: what the log decided, and what was recorded before, with a receipt for each success."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from replica.active.admission_budget import AdmissionBudget
from replica.active.parts import Parts
from replica.active.waiting import Waiting, send
from replica.index.newest import newest_acceptances
from replica.notary.acceptances import decode_acceptance
from replica.notary.answers import Accepted, Answer, Notarised, NotNow, Refused
from replica.notary.codes import Code
from replica.notary.counted import CountedRequest
from replica.notary.outcomes import CODE_OF
from replica.notary.receipts import Receipt
from replica.notary.rules import Outcome, Verdict

_OUT_OF_TERM = "this site may not serve just now, and another one may"

Decided = tuple[Waiting, CountedRequest, Verdict]
"""The waiting caller, its record, and the verdict on it."""


class Busy(Protocol):
    """What logs the submissions."""

    busy_since_s: float  # when the first caller began to wait, or the newest answers


class Answering:
    """Makes and sends answers. All transactions that were notarised together share one signature."""

    def __init__(self, parts: Parts, appender: Busy, budget: AdmissionBudget) -> None:
        self._clock = parts.clock
        self._estimate = parts.estimate
        self._receipt_signer = parts.receipt_signer
        self._why_exposed = parts.why_exposed
        self._places = parts.places
        self._trace = parts.trace
        self._retry_after_s = parts.settings.retry_after_s
        self._index = parts.index
        self._appender = appender
        self._budget = budget

    def answer_decided(self, answered: Sequence[Decided], states: int) -> None:
        """Answer a batch that was read back, of so many states."""
        now_s = self._clock.boottime_s()
        if self._estimate.note_batch(states, now_s - self._appender.busy_since_s, self._budget.states - states):
            self._appender.busy_since_s = now_s
        began_us = self._clock.wall_us()
        synchronous = [decided for decided in answered if not decided[0].options.asynchronous]
        self._confirm_accepted(answered)
        certified = [
            (entry, verdict.notarised_offset)
            for _, entry, verdict in synchronous
            if verdict.notarised_offset is not None
        ]
        notarised = [(entry.request.tx_id, entry.content_digest) for entry, _ in certified]
        places = [self._places.of(offset) for _, offset in certified]

        accepted = self._accepted(synchronous)

        def answer(receipts: Sequence[Receipt] | None) -> None:
            self.send(decided_answers(synchronous, receipts, accepted, self._retry_after_s))
            self._trace.answered(answered, began_us)

        self._receipt_signer.make(notarised, answer, places)

    def _accepted(self, decided: Sequence[Decided]) -> dict[int, int]:
        """Where commands that were used again had been accepted, by the log offsets of the later records."""
        reused = [entry for _, entry, verdict in decided if verdict.outcome is Outcome.COMMAND_ID_REUSED]
        if not reused:
            return {}
        changes = [entry.change_id for entry in reused]
        newest = newest_acceptances(self._index, changes, [entry.offset for entry in reused])
        return {
            entry.offset: decode_acceptance(value).offset
            for entry, value in zip(reused, newest, strict=True)
            if value is not None
        }

    def _confirm_accepted(self, answered: Sequence[Decided]) -> None:
        """Answer asynchronous submissions: the log has recorded them now. Some were answered early."""
        wait_s = self._estimate.wait_s(0)
        self.send(
            (waiting, Accepted(waiting.command.submission_id, wait_s, entry.offset))
            for waiting, entry, _ in answered
            if waiting.options.asynchronous
        )

    def answer_accepted(self, accepted: Sequence[tuple[Waiting, int]]) -> None:
        """Repeat recorded answers: the command was accepted before, its transaction notarised at that log offset."""
        contents = [(waiting.command.tx_id, waiting.command.content_digest) for waiting, _ in accepted]
        places = [self._places.of(offset) for _, offset in accepted]

        def answer(receipts: Sequence[Receipt] | None) -> None:
            self.send(recorded_answers(accepted, receipts, self._retry_after_s))

        self._receipt_signer.make(contents, answer, places)

    def send(self, answers: Iterable[tuple[Waiting, Answer]]) -> None:
        """Send answers; but nothing as decided where another site may serve by now, whose log may lack these
        records, or where a power cut could take them without a trace."""
        why = self._why_exposed() if self._receipt_signer.in_term() else _OUT_OF_TERM
        if why is not None:
            answers = [(waiting, _undecided(answer, why, self._retry_after_s)) for waiting, answer in answers]
        send(answers)


def decided_answers(
    decided: Sequence[Decided],
    made: Sequence[Receipt] | None,
    accepted: Mapping[int, int],
    retry_after_s: float,
) -> list[tuple[Waiting, Answer]]:
    """The decisions as answers for the waiting callers; a success without a receipt is not yet answered as one.

    `made`: the receipts of what is notarised, in order; None when they could not be made. `accepted`: see
    Answering._accepted.
    """
    receipts = iter(made or ())
    answers: list[tuple[Waiting, Answer]] = []
    for waiting, entry, verdict in decided:
        answer: Answer
        if verdict.notarised_offset is not None and made is None:
            answer = _unsigned(retry_after_s)
        elif verdict.notarised_offset is not None:
            answer = Notarised(
                entry.request.tx_id,
                entry.content_digest,
                verdict.notarised_offset,
                entry.offset,
                verdict.outcome is Outcome.DEDUPLICATED,
                next(receipts),
                entry.ledger_offset,
            )
        else:
            closed = verdict.outcome is Outcome.TIME_WINDOW_CLOSED
            answer = Refused(
                CODE_OF[verdict.outcome],
                entry.request.tx_id,
                entry.offset,
                verdict.conflicts,
                entry.judged_us if closed else None,
                window=entry.request.window if closed else None,
                accepted_offset=accepted.get(entry.offset),
                ledger_offset=entry.ledger_offset,
            )
        answers.append((waiting, answer))
    return answers


def recorded_answers(
    accepted: Sequence[tuple[Waiting, int]], made: Sequence[Receipt] | None, retry_after_s: float
) -> list[tuple[Waiting, Answer]]:
    """The answers to commands that were accepted before. `made`: a receipt for each, None when there are none."""
    if made is None:
        return [(waiting, _unsigned(retry_after_s)) for waiting, _ in accepted]
    return [
        (waiting, Notarised(waiting.command.tx_id, waiting.command.content_digest, offset, None, True, receipt))
        for (waiting, offset), receipt in zip(accepted, made, strict=True)
    ]


def _undecided(answer: Answer, why: str, retry_after_s: float) -> Answer:
    return answer if isinstance(answer, NotNow) else NotNow(Code.OUTCOME_UNKNOWN.name, why, retry_after_s)


def _unsigned(retry_after_s: float) -> NotNow:
    detail = "it is decided, but the notary's key cannot be used just now"
    return NotNow(Code.OUTCOME_UNKNOWN.name, detail, retry_after_s)
