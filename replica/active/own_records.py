"""A worker's own records: which were appended, and what each run that was read back means for them. Pure.

The log has records of all workers. A worker answers its own only, and knows them by the whole record. A record of ours
is logged anew in one case only: a barrier was read that is not the one the record names. What is read later under the
old activation is void for every reader, so no copy of it can count any more, wherever it is: in the log behind the
barrier, on its way, or lost.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from replica.active.answering import Decided
from replica.active.numbers import Numbers
from replica.active.waiting import Waiting
from replica.following.apply import Applied
from replica.notary.counted import CountedRequest
from replica.notary.errors import InvariantBroken
from replica.notary.records import RECORD_FORMATS, BarrierRecord, RequestRecord, encode_record

APPENDS_MAX = 10  # of one submission: so many changes of holder in a row, and its sender is asked to come back


class Sent(msgspec.Struct, gc=False):
    """A submission whose record was appended and not read back yet; `times`: how often it was appended."""

    waiting: Waiting
    record: RequestRecord
    times: int


class Again(msgspec.Struct, frozen=True):
    """A submission whose record is void for ever, and how often it was appended."""

    waiting: Waiting
    times: int


class OwnRead(msgspec.Struct, frozen=True):
    """What a run means for our records: `decided` counted; `unreadable` are void for any reader, with log offsets, for
    good; `again` were appended under an activation that is over, and may be appended under the present one."""

    decided: list[Decided]
    unreadable: list[tuple[int, Waiting]]
    again: list[Again]


class OwnRecords:
    """The records that a worker waits for, by sequence number, in the order of appending."""

    def __init__(self) -> None:
        self.sent: dict[int, Sent] = {}

    def make(
        self, waiting: Waiting, barrier: BarrierRecord, numbers: Numbers, stamp_us: int, *, times: int = 1
    ) -> bytes:
        """The bytes of a record under this barrier, which is waited for from now on. Raises any error of the values:
        then nothing is waited for, and the number is lost."""
        if waiting.terms is None:
            raise InvariantBroken("a submission is to be logged, and its deduplication period is not known")
        record = RECORD_FORMATS[barrier.record_format].make_request(
            barrier.record_format,
            barrier.activation_id,
            numbers.take(),
            stamp_us,
            waiting.submission,
            waiting.terms.deduplication_us,
            waiting.terms.after_offset,
        )
        value = encode_record(record)
        self.sent[record.sequence] = Sent(waiting, record, times)
        return value

    def take(self, applied: Applied) -> OwnRead:
        """Take a run that was read back. What it settles is not waited for any more.

        Raises InvariantBroken when a record that counts has one of our numbers and is another one. Then ranges have
        met, and nobody is answered.
        """
        decided: list[tuple[int, Decided]] = []
        unreadable: list[tuple[int, int, Waiting]] = []
        for entry, verdict in applied.decided():
            sent = self.sent.get(entry.record.sequence)
            if sent is None:
                continue
            if not isinstance(entry, CountedRequest) or verdict is None or entry.record != sent.record:
                raise _met(entry.offset, entry.record.sequence)
            decided.append((entry.record.sequence, (sent.waiting, entry, verdict)))
        for void in applied.reading.voids:  # with a record: of the activation in force, but no request
            sent = None if void.record is None else self.sent.get(void.record.sequence)
            if void.record is not None and sent is not None:
                if void.record != sent.record:
                    raise _met(void.offset, void.record.sequence)
                unreadable.append((void.record.sequence, void.offset, sent.waiting))
        for sequence in [number for number, _ in decided] + [number for number, _, _ in unreadable]:
            self.sent.pop(sequence, None)
        again = self._void_for_ever(applied.position.barrier) if applied.reading.barriers else []
        return OwnRead([one for _, one in decided], [(offset, waiting) for _, offset, waiting in unreadable], again)

    def _void_for_ever(self, in_force: BarrierRecord | None) -> list[Again]:
        """Remove and return what names another activation than the one in force after the run."""
        over = [
            (number, sent)
            for number, sent in self.sent.items()
            if in_force is None or sent.record.activation_id != in_force.activation_id
        ]
        for number, _ in over:
            del self.sent[number]
        return [Again(sent.waiting, sent.times) for _, sent in over]


def split_by_patience(again: Sequence[Again]) -> tuple[list[Again], list[Waiting]]:
    """Those to append once more, and those that were appended often enough."""
    patient = [one for one in again if one.times < APPENDS_MAX]
    return patient, [one.waiting for one in again if one.times >= APPENDS_MAX]


def _met(offset: int, sequence: int) -> InvariantBroken:
    return InvariantBroken(
        f"sequence number {sequence} is ours, and the record at offset {offset} is another's: two ranges have met"
    )
