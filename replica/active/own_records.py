"""A replica's own records: which were appended, and what each run that was read back means for them. Pure.

The log may have records of all replicas. Each answers its own only, and knows them by the whole record. A record of
ours is void for ever in one case only: a barrier was read that is not the one the record names. What is read later
under the old activation is void for every reader, so no copy of it can count any more, wherever it is: in the log
behind the barrier, on its way, or lost. Only then may its submission be logged anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from replica.active.answering import Decided
from replica.active.waiting import Waiting
from replica.following.apply import Applied
from replica.notary.counted import CountedRequest
from replica.notary.errors import InvariantBroken
from replica.notary.records import RECORD_FORMATS, BarrierRecord, RequestRecord, encode_record

VOIDED_MAX = 10  # records of one submission: so many changes of holder in a row, and its sender is asked to come back


class OwnRead(msgspec.Struct, frozen=True):
    """What a run means for our records: `decided` counted; `unreadable` are void for any reader, with log offsets, for
    good; `again` were appended under an activation that is over, and may be appended under the present one."""

    decided: list[Decided]
    unreadable: list[tuple[int, Waiting]]
    again: list[Waiting]


class Made(msgspec.Struct):
    """Records that were made: their bytes, those who want to know their places early, by position in `values`, and
    those of which no record can be made."""

    values: list[bytes]
    early: dict[int, Waiting]
    failed: list[tuple[Waiting, Exception]]


class OwnRecords:
    """The records that were appended and not read back yet, by sequence number, in the order of appending."""

    def __init__(self) -> None:
        self.sent: dict[int, tuple[Waiting, RequestRecord]] = {}

    def make(self, due: Iterable[Waiting], barrier: BarrierRecord, first: int, stamp_us: int) -> Made:
        """Records under this barrier, which are waited for from now on; their numbers are dense from `first`."""
        made = Made([], {}, [])
        number_format, activation_id, values, sent = (
            barrier.record_format,
            barrier.activation_id,
            made.values,
            self.sent,
        )
        make_request, sequence = RECORD_FORMATS[number_format].make_request, first
        for waiting in due:
            terms = waiting.terms
            try:
                if terms is None:
                    raise InvariantBroken("a submission is to be logged, and its deduplication period is not known")
                record = make_request(
                    number_format,
                    activation_id,
                    sequence,
                    stamp_us,
                    waiting.submission,
                    terms.deduplication_us,
                )
                values.append(encode_record(record))
            except Exception as error:  # one caller's values
                made.failed.append((waiting, error))
                continue
            if waiting.options.early:
                made.early[sequence - first] = waiting
            sent[sequence] = waiting, record
            sequence += 1
        return made

    def take(self, applied: Applied) -> OwnRead:
        """Take a run that was read back. What it settles is not waited for any more.

        Raises InvariantBroken when a record of the activation has one of our numbers and is another one: numbers were
        given twice. Then nobody is answered.
        """
        sent = self.sent
        decided: list[Decided] = []
        unreadable: list[tuple[int, Waiting]] = []
        for entry, verdict in applied.decided():
            found = sent.get(entry.record.sequence)
            if found is None:
                continue
            waiting, record = found
            if entry.record == record and isinstance(entry, CountedRequest) and verdict is not None:
                decided.append((waiting, entry, verdict))
            elif entry.record.activation_id == record.activation_id:
                raise _met(entry.offset, record.sequence)
        settled = [entry.record.sequence for _, entry, _ in decided]
        for void in applied.reading.voids:  # with a record: of the activation in force, but no request
            found = None if void.record is None else sent.get(void.record.sequence)
            if void.record is None or found is None:
                continue
            waiting, record = found
            if void.record == record:
                unreadable.append((void.offset, waiting))
                settled.append(record.sequence)
            elif void.record.activation_id == record.activation_id:
                raise _met(void.offset, record.sequence)
        for sequence in settled:
            sent.pop(sequence, None)
        return OwnRead(decided, unreadable, self._void_for_ever(applied))

    def _void_for_ever(self, applied: Applied) -> list[Waiting]:
        """Remove and return what names another activation than the one in force after the run."""
        if not applied.reading.barriers:
            return []
        barrier = applied.position.barrier
        in_force = None if barrier is None else barrier.activation_id
        over = [number for number, (_, record) in self.sent.items() if record.activation_id != in_force]
        again = [self.sent.pop(number)[0] for number in over]
        for waiting in again:
            waiting.voided += 1
        return again


def split_by_patience(again: Sequence[Waiting]) -> tuple[list[Waiting], list[Waiting]]:
    """Those to append once more, and those that were appended often enough."""
    return (
        [waiting for waiting in again if waiting.voided < VOIDED_MAX],
        [waiting for waiting in again if waiting.voided >= VOIDED_MAX],
    )


def _met(offset: int, sequence: int) -> InvariantBroken:
    return InvariantBroken(
        f"sequence number {sequence} is ours, and the record at offset {offset} is another's: numbers were given twice"
    )
