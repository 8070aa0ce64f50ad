"""Applies the log to the index: void rule, rules and write batch, one run of records at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

import msgspec

from replica.index.commands import knows_commands
from replica.index.interface import Index
from replica.index.parties import knows_parties, newest_of, write_notes
from replica.log.interface import LogRecords
from replica.notary.acceptances import newest_with
from replica.notary.counted import Counted, CountedNote, CountedRequest
from replica.notary.errors import IndexMismatch, TableLags
from replica.notary.position import Position, begin
from replica.notary.reading import Reading, VoidReason, read_records
from replica.notary.rules import DEDUPLICATING_FROM, REGISTERED_FROM, Verdict, judge, keys_of
from replica.notary.salvage import NO_SALVAGES, OF_COMMANDS, OF_PARTIES, OF_STATES, Salvages, of_kinds


class Applied(msgspec.Struct):
    """The result of applying a run of records. `verdicts` has one entry per counted record, None where it has none."""

    reading: Reading
    verdicts: list[Verdict | None]
    accepted: dict[bytes, bytes]  # acceptances of commands to add to the index

    @property
    def position(self) -> Position:
        """The position after the run."""
        return self.reading.position

    def decided(self) -> Iterator[tuple[Counted, Verdict | None]]:
        """What counted, in log order, with the verdict of each request."""
        return zip(self.reading.counted, self.verdicts, strict=True)


def judge_records(
    index: Index, position: Position, records: LogRecords, salvages: Salvages = NO_SALVAGES
) -> tuple[Applied, dict[bytes, bytes]]:
    """Read and judge the records after `position`, without changing anything; also returns the index entries to add.

    The index may be newer than the position: its entries at or after a request's own offset do not count. Where its
    acceptances do not reach the position, none are added. Lost records add the entries of their salvage, at their own
    offsets. Raises SalvageMissing when it is not held, IndexMismatch when the index contradicts it, and TableLags
    when the records are judged by acceptances or registrations that the index does not have.
    """
    return judge_reading(index, read_records(position, records), position, records, salvages)


def judge_reading(
    index: Index, reading: Reading, position: Position, records: LogRecords, salvages: Salvages
) -> tuple[Applied, dict[bytes, bytes]]:
    """Likewise, for what was read of the records."""
    all_lost = lost_in(reading, records, salvages)
    _check_lost(index, all_lost)
    lost, of_commands = of_kinds(all_lost, OF_STATES), of_kinds(all_lost, OF_COMMANDS)
    requests = [entry for entry in reading.counted if isinstance(entry, CountedRequest)]
    keys = [keys_of(entry) for entry in requests]
    known = index.lookup(list(chain.from_iterable(keys))) if keys else []
    if lost:
        asked = chain.from_iterable(keys)
        known = [value or lost.get(key) for key, value in zip(asked, known, strict=True)]
    newest, registered = _newest(index, position, requests, of_commands), _registered(index, reading, requests)
    of_requests, added, accepted = judge(requests, keys, known, newest, registered)
    accepted |= of_commands
    if not added.keys().isdisjoint(lost):
        raise IndexMismatch("the salvage names what the log itself decided right before the lost range")
    added |= lost
    if len(requests) == len(reading.counted):
        return Applied(reading, list(of_requests), accepted), added
    verdicts = iter(of_requests)
    of_all = [next(verdicts) if isinstance(entry, CountedRequest) else None for entry in reading.counted]
    return Applied(reading, of_all, accepted), added


def _newest(
    index: Index, position: Position, requests: Sequence[CountedRequest], lost: Mapping[bytes, bytes]
) -> list[bytes | None] | None:
    """The newest acceptance of each command, below its record, those of `lost` records of the run included; None where
    the index does not have them all."""
    if knows_commands(index, position.offset):
        found = index.commands.newest([entry.change_id for entry in requests], [entry.offset for entry in requests])
        return newest_with(lost, requests, found) if lost else found
    judged_by = max((entry.rules_version for entry in requests), default=1)
    if judged_by >= DEDUPLICATING_FROM:
        raise TableLags(f"acceptances of commands are not known up to offset {position.offset}")
    return None


def _registered(index: Index, reading: Reading, requests: Sequence[CountedRequest]) -> list[bytes | None] | None:
    """The newest registration of each request's key, below its record; None where no rules in force ask for it.

    The run's own registrations count for the requests after them, so the table must have them already.
    """
    if max((entry.rules_version for entry in requests), default=1) < REGISTERED_FROM:
        return None
    if not knows_parties(index.parties, reading.position.offset):
        raise TableLags(f"registrations of keys are not known up to offset {reading.position.offset}")
    return newest_of(index.parties, requests)


def notes_in(reading: Reading) -> list[CountedNote]:
    """What counted and has no verdict."""
    return [entry for entry in reading.counted if isinstance(entry, CountedNote)]


def lost_in(reading: Reading, records: LogRecords, salvages: Salvages) -> dict[bytes, bytes]:
    """The entries of this run's lost records, of all kinds. Raises as `Salvages.entries_of` does."""
    voids = [void.offset for void in reading.voids if void.reason is VoidReason.UNDECODABLE]
    start = records[0][0] if records else 0
    return salvages.entries_of(records[offset - start] for offset in voids) if voids else {}


def _check_lost(index: Index, lost: Mapping[bytes, bytes]) -> None:
    """Raises IndexMismatch where an index or one of its tables contradicts the entries of lost records."""
    for kinds, table in ((OF_STATES, index), (OF_COMMANDS, index.commands), (OF_PARTIES, index.parties)):
        due = of_kinds(lost, kinds)
        for (key, value), found in zip(due.items(), table.lookup(list(due)) if due else (), strict=True):
            if found not in (None, value):
                raise IndexMismatch(f"key {key.hex()}: the index has {found.hex()}, the salvage {value.hex()}")


class Applier:
    """The index of one replica and how far the log is applied to it. The position never goes back."""

    def __init__(self, index: Index, topic_id: str, salvages: Salvages = NO_SALVAGES) -> None:
        self.index = index
        self.salvages = salvages
        self.position = index.position() or begin(topic_id)

    def apply(self, records: LogRecords) -> Applied:
        """Judge the next records and write entries and position in one batch. Their registrations are written before.

        Raises IndexUnreadable when the index fails, InvariantBroken on a gap, FormatUnknown for a newer log,
        and what `judge_records` raises.
        """
        reading = read_records(self.position, records)
        lost = of_kinds(lost_in(reading, records, self.salvages), OF_PARTIES)
        write_notes(self.index.parties, notes_in(reading), self.position, reading.position, lost)
        applied, added = judge_reading(self.index, reading, self.position, records, self.salvages)
        self.index.write(added, applied.position, applied.accepted)
        self.position = applied.position
        return applied
