"""Read back: matches the records that the follower applied with their waiting callers, and passes both on.

Only records that were read back and applied are answered: every answer comes from the log.
"""

from __future__ import annotations

from collections.abc import MutableMapping

from ha.ending import Cause, Ending
from replica.active.answering import Answering, Decided
from replica.active.appending import Appender
from replica.active.intake import Intake
from replica.active.parts import Parts
from replica.active.publisher import Publisher
from replica.active.waiting import Waiting, send
from replica.following.apply import Applied
from replica.notary.counted import CountedRequest
from replica.notary.errors import InvariantBroken
from replica.notary.position import Position
from replica.notary.records import RequestRecord


class ReadBack:
    """One activation's matching. Gets every run that the follower applies, from before the barrier to the end."""

    def __init__(
        self, parts: Parts, appender: Appender, intake: Intake, answering: Answering, publisher: Publisher
    ) -> None:
        self._step_down = parts.step_down
        self._failures = parts.failures
        self._appender = appender
        self._intake = intake
        self._answering = answering
        self._publisher = publisher
        self.in_force: Position | None = None  # after the run in which our barrier came into force

    def go_on_from(self, position: Position) -> None:
        """Our barrier came into force before this activation had parts: match what is applied after this position."""
        self.in_force = position

    def take(self, applied: Applied) -> None:
        """Answer the callers that wait for a record of the run, and queue its completions. Raises InvariantBroken."""
        barrier, ours = applied.position.barrier, self._appender.activation_id
        if self.in_force is None:
            if barrier is not None and barrier.activation_id == ours:
                self.in_force = applied.position  # published by the opening, together with what lies before
            return
        self.answer_unreadable(applied)
        answered = match(applied, ours, self._appender.waiting)
        self._appender.read_back([waiting for waiting, _, _ in answered])
        states = sum([waiting.states for waiting, _, _ in answered])
        offsets = self._publisher.add(applied)
        if answered:
            self._answering.answer_decided(answered, states, offsets)
        self._intake.leave(len(answered), states)
        if barrier is None or barrier.activation_id != ours:
            self._step_down(Ending(Cause.SUPERSEDED, "a higher barrier is in force"))

    def answer_unreadable(self, applied: Applied) -> None:
        """Answer records of ours whose request no reader can decode: they count for nothing, for any reader."""
        for offset, waiting in match_unreadable(applied, self._appender.activation_id, self._appender.waiting):
            error = InvariantBroken(f"a request was logged at offset {offset} that no reader can read")
            self._appender.read_back([waiting])
            send([(waiting, self._failures.answer(waiting.command.submission_id, error))])
            self._intake.leave(1, waiting.states)


def match(applied: Applied, activation_id: bytes, waiting_by_sequence: MutableMapping[int, Waiting]) -> list[Decided]:
    """Remove and return the callers that wait for a request of the run, each with its decision.

    They are matched by sequence number, and by transaction id and content as well. Raises InvariantBroken where these
    disagree: then no caller is removed or answered.
    """
    answered: list[Decided] = []
    for entry, verdict in applied.decided():
        if isinstance(entry, CountedRequest) and verdict is not None:
            record = entry.record
            if record.activation_id != activation_id:
                continue
            waiting = waiting_by_sequence.pop(record.sequence, None)
            if waiting is not None:
                answered.append((waiting, entry, verdict))
                command = waiting.command
                if command.content_digest != entry.content_digest or command.tx_id != entry.request.tx_id:
                    waiting_by_sequence.update((each.record.sequence, one) for one, each, _ in answered)
                    raise _misnumbered(entry.offset, record, waiting)
    return answered


def match_unreadable(
    applied: Applied, activation_id: bytes, waiting_by_sequence: MutableMapping[int, Waiting]
) -> list[tuple[int, Waiting]]:
    """Remove and return, with log offsets, the callers of requests that no reader can read. Raises InvariantBroken."""
    met: list[tuple[int, Waiting]] = []
    for void in applied.reading.voids:
        record = void.record
        if record is None or record.activation_id != activation_id:
            continue
        waiting = waiting_by_sequence.get(record.sequence)
        if waiting is not None:
            if waiting.submission.request != record.submission.request:
                raise _misnumbered(void.offset, record, waiting)
            met.append((void.offset, waiting_by_sequence.pop(record.sequence)))
    return met


def _misnumbered(offset: int, record: RequestRecord, waiting: Waiting) -> InvariantBroken:
    return InvariantBroken(
        f"record {record.sequence} of this activation, at offset {offset}, is another submission"
        f" than {waiting.command.submission_id!r}, which waits for that number"
    )
