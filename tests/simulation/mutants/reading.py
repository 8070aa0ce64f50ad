"""Defects in the void rule, and in what is saved with a position."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from pytest import MonkeyPatch

import replica.following.apply
import replica.notary.reading
import replica.notary.rules
from replica.following.apply import Applied, Applier, judge_records
from replica.notary.position import Position
from replica.notary.reading import RunReader, VoidReason
from replica.notary.records import (
    BarrierRecord,
    decode_record,
)
from tests.simulation.mutants.registry import mutant


@mutant("a record counts whatever activation it is from")
def records_of_any_activation_count(patch: MonkeyPatch) -> None:
    decode = decode_record
    take = RunReader.take

    def lenient(self: RunReader, offset: int, value: bytes) -> None:
        def decode_as_ours(raw: bytes, format_in_force: int) -> Any:
            record = decode(raw, format_in_force)
            if isinstance(record, BarrierRecord) or self.barrier is None:
                return record
            return msgspec.structs.replace(record, activation_id=self.barrier.activation_id)

        with MonkeyPatch.context() as inner:
            inner.setattr(replica.notary.reading, "decode_record", decode_as_ours)
            take(self, offset, value)

    patch.setattr(RunReader, "take", lenient)


@mutant("a barrier of the epoch in force replaces the barrier in force")
def equal_epochs_come_into_force(patch: MonkeyPatch) -> None:
    barrier = RunReader.read_barrier

    def lenient(self: RunReader, record: BarrierRecord) -> VoidReason | None:
        if self.barrier is not None and record.epoch == self.barrier.epoch and record != self.barrier:
            self.barrier = msgspec.structs.replace(self.barrier, epoch=record.epoch - 1)
        return barrier(self, record)

    patch.setattr(RunReader, "read_barrier", lenient)


@mutant("a record that the log's client stored twice counts twice")
def repeats_count(patch: MonkeyPatch) -> None:
    first_time = replica.notary.reading.first_time
    patch.setattr(replica.notary.reading, "first_time", lambda *rest: first_time(*rest) or True)


def _saved(patch: MonkeyPatch, forget: Callable[[Position], Position]) -> None:
    """What is stored with the entries is not the whole position."""

    def apply(self: Applier, records: Any) -> Applied:
        applied, added = judge_records(self.index, self.position, records)
        self.index.write(added, forget(applied.position))
        self.position = applied.position
        return applied

    patch.setattr(Applier, "apply", apply)


@mutant("the barrier in force is not saved with the position")
def barrier_not_saved_with_position(patch: MonkeyPatch) -> None:
    _saved(patch, lambda position: msgspec.structs.replace(position, barrier=None))


@mutant("the sequence numbers that were met are not saved with the position")
def sequence_numbers_not_saved_with_position(patch: MonkeyPatch) -> None:
    _saved(patch, lambda position: msgspec.structs.replace(position, seen=()))


@mutant("the highest stamp is not saved with the position")
def stamp_not_saved_with_position(patch: MonkeyPatch) -> None:
    _saved(patch, lambda position: msgspec.structs.replace(position, stamp_us=0))


@mutant("the position is written before the entries, in a batch of its own")
def position_outside_the_batch(patch: MonkeyPatch) -> None:
    def apply(self: Applier, records: Any) -> Applied:
        applied, added = judge_records(self.index, self.position, records)
        self.index.write({}, applied.position)
        self.index.write(added, applied.position)
        self.position = applied.position
        return applied

    patch.setattr(Applier, "apply", apply)
