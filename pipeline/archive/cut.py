"""How much of a log that was cut is what it had: it may have grown again, with other records at the same offsets.

Everything that survives is held against what the log has now: an index by judging the log again, completions and
positions by the records that they name. Before the first contradiction the log has nothing that anybody knows to have
been otherwise.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from replica.following.index_check import compare_run
from replica.index.compare import recorded_at
from replica.index.interface import Index
from replica.log.interface import LogRecords
from replica.notary.counted import CountedRequest
from replica.notary.errors import IndexMismatch, RestoreRefused
from replica.notary.position import BEGIN, Position, offset_of
from replica.notary.reading import Reading, read_records
from replica.notary.records import record_digest
from replica.notary.salvage import Salvages, salvage_named
from replica.store.interface import Completion

RUN_RECORDS = 5_000

ReadRecords = Callable[[int, int], Iterable[tuple[int, bytes]]]
"""The log's records [first, end), offset and value."""

Command = tuple[bytes, bytes, bytes]
"""Change id, transaction id and content digest."""


class Kept(NamedTuple):
    """The position after the last record that nothing contradicts, and what contradicts the next one; None: the log
    just ends there."""

    position: Position
    contradiction: str | None


class Evidence(NamedTuple):
    """What survives of a log. `furthest`: the index that goes furthest, with its name. `completions`: of any records.
    `positions`: with who noted them. `salvages`: of lost ranges that the log has already."""

    furthest: tuple[str, Index] | None
    completions: Sequence[Completion]
    positions: Sequence[tuple[str, Position]]
    salvages: Salvages


class _Contradicted(Exception):
    """A run of records is not what somebody knows; nothing was noted of it."""


def kept_of(start: Position, end: int, read: ReadRecords, evidence: Evidence) -> Kept:
    """How far the records from `start` to before `end` are those of the log that the evidence is of.

    Raises RestoreRefused where evidence is of another log, or the index cannot be held against the records, and what
    reading and judging raise.
    """
    looking = _Looking(start, evidence)
    kept = looking.walk(read(start.offset + 1, end))
    invented = looking.first_invented(kept.position.offset)
    if invented is None:
        return kept
    again = _Looking(start, evidence).walk(read(start.offset + 1, invented))
    return Kept(again.position, f"an index has an entry at offset {invented}, and the log makes none there")


class _Looking:
    """The evidence held against a log, run by run."""

    def __init__(self, start: Position, evidence: Evidence) -> None:
        self.position = self._start = start
        self._salvages = evidence.salvages
        self._digests: defaultdict[int, dict[str, bytes]] = defaultdict(dict)
        for name, position in evidence.positions:
            if position.topic_id != start.topic_id:
                raise RestoreRefused(f"{name} is of log {position.topic_id}, and not of {start.topic_id}")
            self._digests[position.offset][name] = position.digest
        self._completions: defaultdict[int, set[Command]] = defaultdict(set)
        for one in evidence.completions:
            self._completions[one.log_offset].add((one.change_id, one.tx_id, one.content_digest))
        self._index = evidence.furthest
        self._applied = BEGIN if self._index is None else offset_of(self._index[1].position())
        self._recorded = bytearray()  # whether the record at an offset after the start makes an entry of an index

    def walk(self, records: Iterable[tuple[int, bytes]]) -> Kept:
        """Look at records up to the first contradiction."""
        left = iter(records)
        while run := list(islice(left, RUN_RECORDS)):
            try:
                self._take(run)
            except _Contradicted as of_run:
                for record in run:  # which is the first one of them
                    try:
                        self._take([record])
                    except _Contradicted as found:
                        return Kept(self.position, str(found))
                return Kept(self.position, str(of_run))
        return Kept(self.position, None)

    def first_invented(self, until: int) -> int | None:
        """The first offset up to `until` where the index has an entry and the log makes none; None: there is none."""
        if self._index is None:
            return None
        first = self._start.offset + 1
        held = range(first, min(until, self._applied) + 1)
        recorded = (recorded_at(value) for _, value in self._index[1].entries())
        return min((at for at in recorded if at in held and not self._recorded[at - first]), default=None)

    def _take(self, run: LogRecords) -> None:
        for offset, value in run:
            for name, digest in self._digests.get(offset, {}).items():
                if record_digest(value) != digest:
                    raise _Contradicted(f"{name} is of another record at offset {offset}")
        reading = read_records(self.position, run)
        self._look_at_completions(run, reading)
        self._look_at_index(run)
        self.position = reading.position

    def _look_at_completions(self, run: LogRecords, reading: Reading) -> None:
        commands: dict[int, Command] = {
            entry.offset: (entry.change_id, entry.request.tx_id, entry.content_digest)
            for entry in reading.counted
            if isinstance(entry, CountedRequest)
        }
        for offset, value in run:
            if not self._completions.get(offset, set()) <= {commands.get(offset)} and not _is_lost(offset, value):
                raise _Contradicted(f"the completions of offset {offset} are of another record")

    def _look_at_index(self, run: LogRecords) -> None:
        due = [record for record in run if record[0] <= self._applied]
        if self._index is None or not due:
            return
        name, index = self._index
        try:
            _, added = compare_run(index, self.position, due, self._salvages)
        except IndexMismatch as error:
            raise _Contradicted(f"the index of {name}: {error.detail}") from None
        marks = bytearray(len(due))
        for value in added.values():
            marks[recorded_at(value) - due[0][0]] = 1
        self._recorded += marks


def _is_lost(offset: int, value: bytes) -> bool:
    return salvage_named(offset, value) is not None
