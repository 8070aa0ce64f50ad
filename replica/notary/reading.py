"""The void rule: which records of the log count, as one pure function that every reader uses.

A barrier comes into force if its epoch is above that of the barrier in force. Any other record
counts only if it carries the activation id in force, is in the format in force, and has a sequence number that was not
met before in that activation. A record that does not count has no effect, but is reported, for counts and alarms. The
genesis counts at offset 0, and nowhere else.

While a lease is held, a claim to it names the holder's newest record that the claimant had read. If the
holder has a counting record after that one, the claim is void: the holder lives. Sequence numbers tell its records from
those that other replicas write under its activation.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from enum import Enum

import msgspec

from replica.notary.counted import Counted, CountedNote, CountedRequest
from replica.notary.errors import BadRequest, FormatUnknown, IndexMismatch, InvariantBroken
from replica.notary.genesis import decode_genesis
from replica.notary.leases import comes_too_late, shows_life
from replica.notary.position import POSITION_VERSION, Position
from replica.notary.records import (
    BarrierRecord,
    NoteRecord,
    RequestRecord,
    SignOfLifeRecord,
    Undecodable,
    are_known,
    decode_record,
    record_digest,
)
from replica.notary.salvage import LOST_TAG, lost_named
from replica.notary.terms import Signed, signed_in


class VoidReason(Enum):
    """Why a record does not count."""

    UNDECODABLE = "undecodable"  # no record of the format in force
    NOT_IN_FORCE = "not_in_force"  # from an activation that is not in force: a deposed active's late record
    REPEAT = "repeat"  # the log's client sent a record twice
    BARRIER_NOT_HIGHER = "barrier_not_higher"  # a barrier whose epoch is not above that of the one in force
    HOLDER_WROTE = "holder_wrote"  # a claim to a lease whose holder wrote after what the claimant had read


class Void(msgspec.Struct, frozen=True):
    """A record without effect. `record`: set if the request record could be decoded, but the request in it is none of
    this ledger."""

    offset: int
    reason: VoidReason
    record: RequestRecord | None = None


class BarrierInForce(msgspec.Struct, frozen=True):
    """A barrier that came into force, its log offset, and the highest stamp before it: when its activation began."""

    record: BarrierRecord
    offset: int
    stamp_us: int


class Reading(msgspec.Struct):
    """The result of reading a run of records: the position after it, the counting requests and notes, the void."""

    position: Position
    counted: list[Counted]
    voids: list[Void]
    barriers: list[BarrierInForce]  # those that came into force in this run
    after_offset: int  # the run's records follow the one at this offset


def read_records(position: Position, records: Iterable[tuple[int, bytes]]) -> Reading:
    """Apply the void rule to the records (offset, value) that follow `position` without a gap.

    Raises InvariantBroken on a gap, and FormatUnknown when a barrier in force names a record format or a version of
    the rules that this release does not know: a reader that guesses would be wrong.
    """
    run = RunReader(position)
    for offset, value in records:
        run.take(offset, value)
    return run.reading()


class RunReader:
    """The void rule while it reads: the fields of a position, and the results so far."""

    __slots__ = (
        "barrier",
        "barrier_offset",
        "barriers",
        "counted",
        "counted_offset",
        "last",
        "ledger_id",
        "ledger_offset",
        "offset",
        "seen",
        "stamp_us",
        "start",
        "voids",
    )

    def __init__(self, start: Position) -> None:
        if start.barrier is not None and not are_known(start.barrier.record_format, start.barrier.rules_version):
            raise FormatUnknown("the position lies after a barrier that this release does not know")
        self.start = start
        self.ledger_id = start.ledger_id
        self.offset = start.offset
        self.last: bytes | None = None
        self.barrier = start.barrier
        self.barrier_offset = start.barrier_offset
        self.counted_offset = start.counted_offset
        self.stamp_us = start.stamp_us
        self.ledger_offset = start.ledger_offset
        self.seen = [list(item) for item in start.seen]
        self.counted: list[Counted] = []
        self.voids: list[Void] = []
        self.barriers: list[BarrierInForce] = []

    def take(self, offset: int, value: bytes) -> None:
        self._next(offset)
        self.last = value
        if offset == 0 and (genesis := decode_genesis(value)) is not None:
            self.ledger_id = genesis.ledger_id
            self.counted.append(CountedNote(offset, genesis, self.stamp_us))
            return
        record = None
        try:
            record = decode_record(value, 0 if self.barrier is None else self.barrier.record_format)
            if isinstance(record, BarrierRecord):
                void = self.read_barrier(record)
            elif self.barrier is None or record.activation_id != self.barrier.activation_id:
                void = VoidReason.NOT_IN_FORCE
            elif isinstance(record, RequestRecord):
                void = self.read_request(record, self.barrier.rules_version)
            elif isinstance(record, SignOfLifeRecord):
                void = None if self.is_first(record.sequence) else VoidReason.REPEAT
            else:
                void = self.read_note(record)
        except (Undecodable, BadRequest):
            void = VoidReason.UNDECODABLE
        if void is not None:
            if value.startswith(LOST_TAG):
                self.read_lost(value)
            unreadable = record if void is VoidReason.UNDECODABLE and isinstance(record, RequestRecord) else None
            self.voids.append(Void(offset, void, unreadable))

    def take_decoded(self, offset: int, record: RequestRecord, signed: Signed) -> None:
        """The same for a request record that was decoded elsewhere, in the format that it names. Not for the last
        record of a run, whose bytes the position after it needs."""
        self._next(offset)
        self.last = None
        if self.barrier is None or record.format != self.barrier.record_format:
            void: VoidReason | None = VoidReason.UNDECODABLE
        elif record.activation_id != self.barrier.activation_id:
            void = VoidReason.NOT_IN_FORCE
        else:
            void = self.count_request(record, signed, self.barrier.rules_version)
        if void is not None:
            self.voids.append(Void(offset, void))

    def _next(self, offset: int) -> None:
        if offset != self.offset + 1:
            raise InvariantBroken(f"the log goes from offset {self.offset} to {offset}")
        self.offset = offset

    def read_barrier(self, record: BarrierRecord) -> VoidReason | None:
        in_force = self.barrier
        if in_force is None or record.epoch > in_force.epoch:
            if comes_too_late(record, in_force, self.counted_offset):
                return VoidReason.HOLDER_WROTE
            if not are_known(record.record_format, record.rules_version):
                raise FormatUnknown(
                    f"epoch {record.epoch} writes record format {record.record_format} under rules"
                    f" {record.rules_version}, which this release does not know"
                )
            self.barrier, self.barrier_offset, self.seen = record, self.offset, []
            self.counted_offset = self.offset
            self.barriers.append(BarrierInForce(record, self.offset, self.stamp_us))
            return None
        return None if record == in_force else VoidReason.BARRIER_NOT_HIGHER

    def read_request(self, record: RequestRecord, rules_version: int) -> VoidReason | None:
        return self.count_request(record, signed_in(record), rules_version)

    def count_request(self, record: RequestRecord, signed: Signed, rules_version: int) -> VoidReason | None:
        """A canonical request of the activation in force counts unless it is for another ledger, or its number was met
        before."""
        if signed.request.ledger_id != self.ledger_id:
            return VoidReason.UNDECODABLE
        if not self.is_first(record.sequence):
            return VoidReason.REPEAT
        self.stamp_us = max(self.stamp_us, record.stamp_us)
        self.ledger_offset += 1
        self.counted.append(
            CountedRequest(self.offset, self.ledger_offset, record, *signed, self.stamp_us, rules_version)
        )
        return None

    def read_lost(self, value: bytes) -> None:
        """Ledger offsets and times judged go on behind those of the records that were lost."""
        with suppress(IndexMismatch):  # one that was made for another offset says nothing
            if (lost := lost_named(self.offset, value)) is not None:
                self.ledger_offset = max(self.ledger_offset, lost.ledger_offset)
                self.stamp_us = max(self.stamp_us, lost.judged_us)

    def read_note(self, record: NoteRecord) -> VoidReason | None:
        if not self.is_first(record.sequence):
            return VoidReason.REPEAT
        self.counted.append(CountedNote(self.offset, record, self.stamp_us))
        return None

    def is_first(self, sequence: int) -> bool:
        """Note the number of a record that counts unless the number was met before."""
        if not first_time(self.seen, sequence):
            return False
        if shows_life(sequence):
            self.counted_offset = self.offset
        return True

    def reading(self) -> Reading:
        position = self.start
        if self.offset != position.offset:
            if self.last is None:
                raise InvariantBroken(f"the record at offset {self.offset} ends a run, and was not taken in its bytes")
            position = Position(
                POSITION_VERSION,
                self.ledger_id,
                position.topic_id,
                self.offset,
                record_digest(self.last),
                self.barrier,
                self.barrier_offset,
                self.stamp_us,
                tuple([(start, end) for start, end in self.seen]),
                self.counted_offset,
                self.ledger_offset,
            )
        return Reading(position, self.counted, self.voids, self.barriers, self.start.offset)


def first_time(seen: list[list[int]], sequence: int) -> bool:
    """Note a sequence number in the ascending ranges; False if it was there. In-order numbers take constant time."""
    if seen and seen[-1][1] == sequence:  # the usual case
        seen[-1][1] += 1
        return True
    at = len(seen)
    while at and sequence < seen[at - 1][0]:
        at -= 1
    before = seen[at - 1] if at else None
    if before is not None and sequence < before[1]:
        return False
    after = seen[at] if at < len(seen) else None
    joins_after = after is not None and sequence + 1 == after[0]
    if before is not None and sequence == before[1]:
        before[1] = seen.pop(at)[1] if joins_after else sequence + 1
    elif after is not None and joins_after:
        after[0] = sequence
    else:
        seen.insert(at, [sequence, sequence + 1])
    return True
