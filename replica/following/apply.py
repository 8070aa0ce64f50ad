"""Applies the log to the index: void rule, rules and write batch, one run of records at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

import msgspec

from replica.index.interface import Index
from replica.index.newest import newest_after_first, newest_registrations, newest_with, noted
from replica.log.interface import LogRecords
from replica.notary.acceptances import first_key
from replica.notary.counted import Counted, CountedNote, CountedRequest
from replica.notary.errors import IndexMismatch
from replica.notary.position import Position, begin
from replica.notary.reading import Reading, VoidReason, read_records
from replica.notary.rules import Verdict, judge, keys_of
from replica.notary.salvage import NO_SALVAGES, OF_COMMANDS, OF_PARTIES, Salvages, of_kinds


class Applied(msgspec.Struct):
    """The result of applying a run of records. `verdicts` has one entry per counted record, None where it has none."""

    reading: Reading
    verdicts: list[Verdict | None]

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

    The index may be newer than the position: its entries at or after a request's own offset do not count. What the run
    itself records counts for the records after it. Lost records add the entries of their salvage, at their own offsets.
    Raises SalvageMissing when it is not held, and IndexMismatch when the index contradicts it.
    """
    return judge_reading(index, read_records(position, records), position, records, salvages)


def judge_reading(
    index: Index, reading: Reading, position: Position, records: LogRecords, salvages: Salvages
) -> tuple[Applied, dict[bytes, bytes]]:
    """Likewise, for what was read of the records."""
    lost = lost_in(reading, records, salvages)
    _check_lost(index, lost)
    requests = [entry for entry in reading.counted if isinstance(entry, CountedRequest)]
    keys = [keys_of(entry) for entry in requests]
    commands = [first_key(entry.change_id) for entry in requests]
    asked = list(chain.from_iterable(keys))
    found = index.lookup([*asked, *commands]) if requests else []
    known, first = found[: len(asked)], found[len(asked) :]
    below = [entry.offset for entry in requests]
    newest = newest_after_first(index, commands, first, below)
    if lost:
        known = [value or lost.get(key) for key, value in zip(asked, known, strict=True)]
        newest = newest_with(of_kinds(lost, OF_COMMANDS), commands, below, newest)
    of_notes = noted(index, notes_in(reading), position.offset + 1, of_kinds(lost, OF_PARTIES))
    registered = newest_registrations(index, requests, of_notes) if requests else []
    of_requests, added, accepted = judge(requests, keys, known, newest, registered)
    added |= accepted
    if not added.keys().isdisjoint(lost):
        raise IndexMismatch("the salvage names what the log itself decided right before the lost range")
    added |= of_notes | lost
    if len(requests) == len(reading.counted):
        return Applied(reading, list(of_requests)), added
    verdicts = iter(of_requests)
    of_all = [next(verdicts) if isinstance(entry, CountedRequest) else None for entry in reading.counted]
    return Applied(reading, of_all), added


def notes_in(reading: Reading) -> list[CountedNote]:
    """What counted and has no verdict."""
    return [entry for entry in reading.counted if isinstance(entry, CountedNote)]


def lost_in(reading: Reading, records: LogRecords, salvages: Salvages) -> dict[bytes, bytes]:
    """The entries of this run's lost records, of all kinds. Raises as `Salvages.entries_of` does."""
    voids = [void.offset for void in reading.voids if void.reason is VoidReason.UNDECODABLE]
    start = records[0][0] if records else 0
    return salvages.entries_of(records[offset - start] for offset in voids) if voids else {}


def _check_lost(index: Index, lost: Mapping[bytes, bytes]) -> None:
    """Raises IndexMismatch where an index contradicts the entries of lost records."""
    for (key, value), found in zip(lost.items(), index.lookup(list(lost)) if lost else (), strict=True):
        if found not in (None, value):
            raise IndexMismatch(f"key {key.hex()}: the index has {found.hex()}, the salvage {value.hex()}")


class Applier:
    """The index of one replica and how far the log is applied to it. The position never goes back."""

    def __init__(self, index: Index, topic_id: str, salvages: Salvages = NO_SALVAGES) -> None:
        self.index = index
        self.salvages = salvages
        self.position = index.position() or begin(topic_id)

    def apply(self, records: LogRecords) -> Applied:
        """Judge the next records, and write entries and position in one batch.

        Raises IndexUnreadable when the index fails, InvariantBroken on a gap, FormatUnknown for a newer log,
        and what `judge_records` raises.
        """
        applied, added = judge_records(self.index, self.position, records, self.salvages)
        self.index.write(added, applied.position)
        self.position = applied.position
        return applied
