"""The void rule across slices: the results of `replica.notary.reading`, without reading the records in order.

A slice alone does not show which activation is in force at its start. So each slice is surveyed: which activation ids
its records carry between one barrier and the next, with which sequence numbers and up to which stamp. A survey has a
few hundred bytes. The plan follows from all surveys: which activation is in force where, which sequence numbers came
before, and the highest stamp before. With the plan, each slice can be judged alone.

A claim to a lease is void if its holder has a counting record after the one that the claim names. So a survey also has
the offset of the newest record of each activation's holder, and the walk through the surveys judges claims as a replica
does.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter

import msgspec
import numpy as np

from pipeline.judging.columns import BARRIER, GENESIS, NOTE, REQUEST, UNDECODABLE, Columns
from pipeline.judging.cursor import Array
from pipeline.judging.ranges import Ranges, common, of_numbers, union, within
from replica.index.compare import recorded_at
from replica.index.interface import NOTHING
from replica.notary.counted import CountedNote
from replica.notary.errors import FormatUnknown, InvariantBroken
from replica.notary.genesis import GenesisRecord, decode_genesis
from replica.notary.leases import OTHERS_FROM, SIGNS_OF_LIFE_FROM, comes_too_late
from replica.notary.parties import (
    OFFICERS_KEY,
    PARTY_KEY,
    Officers,
    PartyNote,
    decode_officers_entry,
    in_force_after,
    pairs_of,
)
from replica.notary.position import BEGIN, POSITION_VERSION, Position
from replica.notary.reading import VoidReason, read_records
from replica.notary.records import (
    BarrierRecord,
    are_known,
    decode_barrier,
    decode_record,
    format_named,
    record_digest,
)
from replica.notary.salvage import lost_named

_first_offset = attrgetter("first_offset")


class Run(msgspec.Struct, frozen=True, array_like=True):
    """Records of one activation and format between two barriers (or a slice's ends), see `Columns.activation`;
    `stamp_us` is the highest of its requests, `requests` how many it has, `newest_offset` that of the holder's last
    record, of any kind; -1: none.

    A sequence number that the run has twice is counted once, as its first record.
    """

    activation_id: bytes
    sequences: Ranges
    stamp_us: int
    requests: int
    newest_offset: int


class Note(msgspec.Struct, frozen=True, array_like=True):
    """An act or a registration that is the first of its sequence number in its stretch; see `Columns.activation`."""

    offset: int
    activation_id: bytes
    sequence: int
    value: bytes


class Stretch(msgspec.Struct, frozen=True, array_like=True):
    """From a slice's start or from a barrier, in force or void, up to the next one."""

    first_offset: int
    barrier: bytes  # the barrier record that it begins with, b"" if it begins with a slice
    runs: tuple[Run, ...]
    notes: tuple[Note, ...] = ()
    lost_ledger_offset: int = 0  # of the lost records that it ends with, and the time judged
    lost_judged_us: int = 0


class Survey(msgspec.Struct, frozen=True, array_like=True):
    """All that the plan needs of one slice of the log; `last_digest` is the SHA-256 of its last record. Requests for
    other ledgers than `ledger_id` were left out: `Columns.ledger_id`, once the plan is known that of the log."""

    ledger_id: bytes
    first_offset: int
    record_count: int
    last_digest: bytes
    stretches: tuple[Stretch, ...]

    @property
    def end_offset(self) -> int:
        """The offset after the slice."""
        return self.first_offset + self.record_count


class Rule(msgspec.Struct, frozen=True, array_like=True):
    """What holds from one offset up to the next rule's: the activation in force, what is a repeat, the stamp so far.

    `activation_id` has the format in force as its last byte. It is empty before the first barrier: then nothing counts.
    `stamp_us` and `ledger_offset`, of the newest completion, are exact at the rule's start.
    """

    first_offset: int
    activation_id: bytes
    repeats: Ranges
    stamp_us: int
    ledger_offset: int


@dataclass(slots=True)
class Plan:
    """The void rule, ready to be applied to any slice that was surveyed, and the position after them all."""

    position: Position
    rules: list[Rule]  # ascending by offset
    barriers: list[tuple[int, BarrierRecord]] = field(default_factory=list)  # in force by turns, from the start's on
    parties: dict[bytes, bytes] = field(default_factory=dict)  # officers and registrations since the start
    notes: list[CountedNote] = field(default_factory=list)  # acts and registrations that count, ascending by offset

    def rules_of(self, columns: Columns) -> list[Rule]:
        """The rules of one slice."""
        end_offset = columns.first_offset + len(columns)
        start = bisect_left(self.rules, columns.first_offset, key=_first_offset)
        return self.rules[start : bisect_left(self.rules, end_offset, lo=start, key=_first_offset)]


@dataclass(frozen=True, slots=True)
class Counted:
    """What counts in a slice: rows of requests (indexes into `Columns.rows`), the time that each is judged at, and the
    ledger offset of its completion."""

    requests: Array
    judged_us: Array
    ledger_offsets: Array
    notes: Array  # rows of what counts and has no verdict


LookAgain = Callable[[Plan, list[int]], Iterable[Survey]]
"""Surveys the slices that begin at these offsets again, with the plan."""


def survey(columns: Columns, plan: Plan | None = None) -> Survey:
    """Survey a slice; it has at least one record.

    A slice that turns out to repeat sequence numbers of earlier ones is surveyed again with the plan so far: the
    sequence numbers come out as before, but the highest stamps and the newest offsets without the repeats, which do not
    count. So is one that seemed to be of another ledger.
    """
    ledger_id = columns.ledger_id if plan is None else plan.position.ledger_id
    known = {} if plan is None else {rule.first_offset: rule for rule in plan.rules_of(columns)}
    own = _own(columns, ledger_id)
    starts = [(0, b"")] if not columns.barriers or columns.barriers[0][0] != columns.first_offset else []
    barrier_rows = [offset - columns.first_offset for offset, _ in columns.barriers]
    starts += [(row, columns.value(row)) for row in barrier_rows]
    starts = sorted(dict([(after, b"") for after in _after_lost(columns)] + starts).items())
    ends = [start for start, _ in starts[1:]] + [len(columns)]
    stretches = []
    for (start, barrier), end in zip(starts, ends, strict=True):
        offset = columns.first_offset + start
        runs = _runs(columns, own, start, end, known.get(offset))
        notes = tuple(_notes(columns, own, start, end))
        stretches.append(Stretch(offset, barrier, runs, notes, *_lost_in(columns, start, end)))
    last = columns.value(len(columns) - 1)
    return Survey(ledger_id, columns.first_offset, len(columns), record_digest(last), tuple(stretches))


def make_plan(
    start: Position, surveys: Iterable[Survey], look_again: LookAgain, lost: Mapping[bytes, bytes] = NOTHING
) -> Plan:
    """The plan for the records after a position. `lost`: what lost records did about officers and registrations.

    Slices with repeats or of another ledger are looked at again, until each was surveyed with what the plan has for it.
    Nearly always one round does. More are needed where a claim to a lease is judged by what a repeat left unclear. Each
    round settles at least one more stretch, so the rounds end.
    Raises InvariantBroken on a gap, and FormatUnknown for a barrier in force that this release does not know.
    """
    found = {one.first_offset: one for one in surveys}
    surveyed_with: dict[int, list[_Repeats]] = {}
    while True:
        making = _walk(start, found.values(), lost)
        repeats = _by_slice(making.rules, found.values())
        stale = [
            first
            for first, one in found.items()
            if repeats.get(first) != surveyed_with.get(first) or _is_of_another(one, making.ledger_id)
        ]
        if not stale:
            return making.plan()
        found |= {one.first_offset: one for one in look_again(making.provisional(), stale)}
        surveyed_with = repeats


def advance(position: Position, surveys: Iterable[Survey]) -> Position | None:
    """The position after slices that follow a position; None if the surveys do not determine it.

    That is so when slices repeat sequence numbers: a survey does not show which of its records has the highest stamp.
    And when one seemed to be of another ledger. Raises as `make_plan` does.
    """
    surveys = list(surveys)
    making = _walk(position, surveys)
    is_unclear = any(rule.repeats for rule in making.rules) or any(
        _is_of_another(one, making.ledger_id) for one in surveys
    )
    return None if is_unclear else making.plan().position


def counted(columns: Columns, plan: Plan) -> Counted:
    """What counts in a slice, by the plan for it."""
    rules, own = plan.rules_of(columns), _own(columns, plan.position.ledger_id)
    counts = np.zeros(len(columns), np.bool_)
    highest = np.zeros(len(columns), np.int64)
    ledger_offsets = np.zeros(len(columns), np.int64)
    is_request = columns.kind == REQUEST
    ends = [rule.first_offset - columns.first_offset for rule in rules[1:]] + [len(columns)]
    for rule, end in zip(rules, ends, strict=True):
        start = rule.first_offset - columns.first_offset
        rows = _first_of_sequence(columns, own, start, end, rule.activation_id)
        counts[rows[~within(columns.sequence[rows], rule.repeats)]] = True
        stamps = np.where(counts[start:end], columns.stamp_us[start:end], 0)
        highest[start:end] = np.maximum(np.maximum.accumulate(stamps), rule.stamp_us)
        ledger_offsets[start:end] = rule.ledger_offset + np.cumsum(counts[start:end] & is_request[start:end])
    requests = np.flatnonzero(counts[columns.rows])
    notes = np.flatnonzero(counts & (columns.kind == NOTE) | (columns.kind == GENESIS))
    rows = columns.rows[requests]
    return Counted(requests, highest[rows], ledger_offsets[rows], notes)


def void_reasons(columns: Columns, found: Counted, plan: Plan) -> Iterator[tuple[int, VoidReason]]:
    """Each void record of a slice, by offset, as the notary's own function has it."""
    ledger_id, barriers = plan.position.ledger_id, plan.barriers
    counts = np.zeros(len(columns), np.bool_)
    counts[columns.rows[found.requests]] = True
    counts[found.notes] = True
    for row in np.flatnonzero(~counts).tolist():
        offset = columns.first_offset + row
        number = bisect_right(barriers, offset, key=itemgetter(0))
        at, barrier = barriers[number - 1] if number else (BEGIN, None)
        if at == offset:
            continue
        # The plan has judged claims: one that is above all before it and yet not in force is void by the holder's life.
        before = Position(POSITION_VERSION, ledger_id, "", offset - 1, b"", barrier, at, counted_offset=offset - 1)
        reading = read_records(before, [(offset, columns.value(row))])
        if reading.voids:
            yield offset, reading.voids[0].reason
        elif columns.kind[row] != BARRIER:  # all is well with it but its number
            yield offset, VoidReason.REPEAT


def _own(columns: Columns, ledger_id: bytes) -> Array:
    """Of each row, whether it has a number of an activation's: requests for other ledgers have none."""
    own: Array = (columns.kind == REQUEST) | (columns.kind == NOTE)
    own[columns.of_others(ledger_id)] = False
    return own


def _is_of_another(found: Survey, ledger_id: bytes) -> bool:
    return found.ledger_id not in (b"", ledger_id)


_Repeats = tuple[int, bytes, Ranges]
"""Of a stretch that has some: its first offset, the activation in force, and the numbers that were met before."""


def _by_slice(rules: Sequence[Rule], surveys: Iterable[Survey]) -> dict[int, list[_Repeats]]:
    """The repeats of each slice that has some."""
    firsts = sorted(one.first_offset for one in surveys)
    found: dict[int, list[_Repeats]] = {}
    for rule in rules:
        if rule.repeats:
            first = firsts[bisect_right(firsts, rule.first_offset) - 1]
            found.setdefault(first, []).append((rule.first_offset, rule.activation_id, rule.repeats))
    return found


def _walk(start: Position, surveys: Iterable[Survey], lost: Mapping[bytes, bytes] = NOTHING) -> _Making:
    making = _Making(start, lost)
    for found in sorted(surveys, key=_first_offset):
        making.slice(found)
    making.take_lost(making.offset + 1)
    return making


def _lost_in(columns: Columns, start: int, end: int) -> tuple[int, int]:
    """The highest ledger offset and time judged that lost records between two rows name."""
    ledger_offset = judged_us = 0
    for row in (start + np.flatnonzero(columns.kind[start:end] == UNDECODABLE)).tolist():
        lost = lost_named(columns.first_offset + row, columns.value(row))
        if lost is not None:
            ledger_offset, judged_us = max(ledger_offset, lost.ledger_offset), max(judged_us, lost.judged_us)
    return ledger_offset, judged_us


def _after_lost(columns: Columns) -> list[int]:
    """The rows after lost records: what is there is judged after what those did."""
    lost = np.zeros(len(columns) + 1, np.bool_)
    for row in np.flatnonzero(columns.kind == UNDECODABLE).tolist():
        lost[row] = lost_named(columns.first_offset + row, columns.value(row)) is not None
    after: list[int] = (1 + np.flatnonzero(lost[:-1] & ~lost[1:])).tolist()
    return [row for row in after if row < len(columns)]


class _Making:
    """Walks through the surveys in log order."""

    def __init__(self, start: Position, lost: Mapping[bytes, bytes]) -> None:
        self.lost = sorted(lost.items(), key=lambda entry: recorded_at(entry[1]), reverse=True)  # not taken yet
        self.ledger_id = start.ledger_id
        self.topic_id = start.topic_id
        self.offset = start.offset
        self.digest = start.digest
        self.rules: list[Rule] = []
        self.barriers = [] if start.barrier is None else [(start.barrier_offset, start.barrier)]
        self.counted_offset = start.counted_offset
        self.stamp_us = start.stamp_us
        self.ledger_offset = start.ledger_offset
        self.seen: Ranges = start.seen
        self.officers = Officers()
        self.parties: dict[bytes, bytes] = {}
        self.registered: dict[bytes, bytes] = {}  # the newest of each key
        self.notes: list[CountedNote] = []
        self.unknown: FormatUnknown | None = None  # the first barrier in force that this release does not know

    def slice(self, found: Survey) -> None:
        if found.first_offset != self.offset + 1:
            raise InvariantBroken(f"the log goes from offset {self.offset} to {found.first_offset}")
        for stretch in found.stretches:
            self.take_lost(stretch.first_offset)
            if stretch.barrier:
                self._barrier(stretch.first_offset, stretch.barrier)
            activation_id = _in_force(self.barriers[-1][1]) if self.barriers else b""
            repeats: Ranges = ()
            before = self.stamp_us, self.ledger_offset
            for run in stretch.runs:
                if activation_id and run.activation_id == activation_id:
                    repeats = common(self.seen, run.sequences)
                    self.seen = union(self.seen, run.sequences)
                    self.stamp_us = max(self.stamp_us, run.stamp_us)
                    self.ledger_offset += run.requests
                    self.counted_offset = max(self.counted_offset, run.newest_offset)
            self.rules.append(Rule(stretch.first_offset, activation_id, repeats, *before))
            if stretch.notes:
                self._take_notes(note for note in stretch.notes if _counts(note, activation_id, repeats))
            self.stamp_us = max(self.stamp_us, stretch.lost_judged_us)
            self.ledger_offset = max(self.ledger_offset, stretch.lost_ledger_offset)
        self.offset, self.digest = found.end_offset - 1, found.last_digest

    def provisional(self) -> Plan:
        """The plan as far as the surveys determine it."""
        at, barrier = self.barriers[-1] if self.barriers else (BEGIN, None)
        position = Position(
            POSITION_VERSION,
            self.ledger_id,
            self.topic_id,
            self.offset,
            self.digest,
            barrier,
            at,
            self.stamp_us,
            self.seen,
            self.counted_offset,
            self.ledger_offset,
        )
        return Plan(position, self.rules, self.barriers, self.parties, self.notes)

    def plan(self) -> Plan:
        """The plan, once nothing is left unclear. Raises FormatUnknown."""
        if self.unknown is not None:
            raise self.unknown
        return self.provisional()

    def take_lost(self, before: int) -> None:
        """Note what lost records below an offset did."""
        while self.lost and recorded_at(self.lost[-1][1]) < before:
            key, value = self.lost.pop()
            self._take_entry(key, value)
            if key[:1] == OFFICERS_KEY:
                self.officers = decode_officers_entry(value)

    def _take_entry(self, key: bytes, value: bytes) -> None:
        self.parties[key] = value
        if key[:1] == PARTY_KEY:
            self.registered[key[:-8]] = value

    def _take_notes(self, notes: Iterable[Note]) -> None:
        counting = [CountedNote(note.offset, _decoded(note), self.stamp_us) for note in notes]
        for genesis in (note.record for note in counting if isinstance(note.record, GenesisRecord)):
            self.ledger_id = genesis.ledger_id
        before = {pair: self.registered[pair] for pair in pairs_of(counting) if pair in self.registered}
        self.officers, added = in_force_after(self.officers, counting, before)
        for key, value in added.items():
            self._take_entry(key, value)
        self.notes += counting

    def _barrier(self, offset: int, value: bytes) -> None:
        record = decode_barrier(value)
        in_force = self.barriers[-1][1] if self.barriers else None
        if in_force is not None and record.epoch <= in_force.epoch:
            return
        if comes_too_late(record, in_force, self.counted_offset):
            return
        if not are_known(record.record_format, record.rules_version):
            # Not raised at once: while repeats leave something unclear, it may turn out to be void.
            self.unknown = self.unknown or FormatUnknown(
                f"epoch {record.epoch} writes record format {record.record_format} under rules {record.rules_version},"
                " which this release does not know"
            )
            return
        self.barriers.append((offset, record))
        self.counted_offset = offset
        self.seen = ()


def _in_force(barrier: BarrierRecord) -> bytes:
    """What `Columns.activation` has of the records that a barrier lets count."""
    return barrier.activation_id + bytes([barrier.record_format])


def _counts(note: Note, activation_id: bytes, repeats: Ranges) -> bool:
    return note.activation_id == activation_id and not within(np.array([note.sequence]), repeats)[0]


def _decoded(note: Note) -> GenesisRecord | PartyNote:
    found = decode_genesis(note.value) or decode_record(note.value, format_named(note.value))
    assert isinstance(found, GenesisRecord | PartyNote)  # _notes
    return found


def _notes(columns: Columns, own: Array, start: int, end: int) -> Iterator[Note]:
    """The genesis, which no activation wrote, and what counts as it does between two rows."""
    if start == 0 and len(columns) and columns.kind[0] == GENESIS:
        yield Note(columns.first_offset, GenesisRecord.activation_id, GenesisRecord.sequence, columns.value(0))
    rows = start + np.flatnonzero(columns.kind[start:end] == NOTE)
    firsts: dict[bytes, set[int]] = {}
    for row in rows.tolist():
        value = columns.value(row)
        record = decode_record(value, format_named(value))
        if not isinstance(record, PartyNote):
            continue
        activation_id = columns.activation[row].tobytes()
        if activation_id not in firsts:
            firsts[activation_id] = set(_first_of_sequence(columns, own, start, end, activation_id).tolist())
        if row in firsts[activation_id]:
            yield Note(columns.first_offset + row, activation_id, int(columns.sequence[row]), value)


def _runs(columns: Columns, own: Array, start: int, end: int, rule: Rule | None) -> tuple[Run, ...]:
    runs = []
    for activation_id in np.unique(columns.activation[start:end][own[start:end]]).tolist():  # the format is no zero
        rows = _first_of_sequence(columns, own, start, end, activation_id)
        numbers = columns.sequence[rows]
        if rule is not None and rule.activation_id == activation_id:
            rows = rows[~within(numbers, rule.repeats)]
        stamp_us = int(columns.stamp_us[rows].max(initial=0))
        of_holder = rows[_of_holder(columns.sequence[rows])]
        newest_offset = columns.first_offset + int(of_holder[-1]) if len(of_holder) else BEGIN
        requests = int(np.count_nonzero(columns.kind[rows] == REQUEST))
        runs.append(Run(activation_id, of_numbers(np.sort(numbers)), stamp_us, requests, newest_offset))
    return tuple(runs)


def _of_holder(sequences: Array) -> Array:
    """Which of these numbers are of the activation's holder."""
    return (sequences < OTHERS_FROM) | (sequences >= SIGNS_OF_LIFE_FROM)


def _first_of_sequence(columns: Columns, own: Array, start: int, end: int, activation_id: bytes) -> Array:
    """Rows of `_own` between `start` and `end` that are the first of their sequence number in an activation."""
    if not activation_id:
        return np.zeros(0, np.int64)
    rows = start + np.flatnonzero(own[start:end] & (columns.activation[start:end] == activation_id))
    numbers = columns.sequence[rows]
    if np.all(numbers[1:] > numbers[:-1]):  # as nearly always
        return rows
    return rows[np.sort(np.unique(numbers, return_index=True)[1])]
