"""Looks whether the tables in the lake are whole: among themselves, and against the log's own records.

What it finds is a defect: rows that somebody deleted, added or changed. The tables' job mends nothing that it has
written; tables that are removed are made again from the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.tables.read import TablesView
from pipeline.tables.rows import COMPLETIONS, CONFLICTS, EPOCHS, LOST, REQUESTS, VERDICTS
from pipeline.tables.write import READ_WAIT_S, RUN_RECORDS
from replica.log.interface import LogRecords, RequestLog
from replica.log.reading_on import open_reading_on
from replica.notary.codes import Code
from replica.notary.counted import CountedRequest
from replica.notary.errors import LogUnavailable
from replica.notary.outcomes import DEDUPLICATED, NOTARISED
from replica.notary.position import BEGIN, begin
from replica.notary.reading import Reading, read_records
from replica.notary.salvage import salvage_named

STRETCH_RECORDS = 1 << 20  # that are in memory at a time
_COLUMNS = {
    REQUESTS: ("log_offset",),
    VERDICTS: ("log_offset", "outcome", "notarised_offset"),
    CONFLICTS: ("log_offset", "state", "usage", "consumed_offset"),
    COMPLETIONS: ("log_offset", "ledger_offset", "outcome", "notarised_offset"),
    EPOCHS: ("log_offset", "epoch"),
    LOST: ("log_offset",),
}
Offsets = np.ndarray[Any, np.dtype[np.int64]]
Rows = Mapping[str, pa.Table]


class Finding(NamedTuple):
    """Something that is wrong with a table, how many records it is wrong about, and the first one's log offset."""

    table: str
    problem: str
    records: int
    first_offset: int


class Before(NamedTuple):
    """What the rows before a stretch end with: the newest completion and its record, whether a record was lost since,
    and the epoch in force."""

    ledger_offset: int = 0
    completed_offset: int = BEGIN
    lost_since: bool = False
    epoch: int = 0


def check_tables(
    tables: TablesView, progress: Callable[[int], None] = lambda offset: None, stretch_records: int = STRETCH_RECORDS
) -> list[Finding]:
    """What the tables say against each other, as far as all of them are. Raises PlaceUnavailable."""
    found: list[Finding] = []
    before = Before()
    for start in range(BEGIN, tables.offset, stretch_records):
        until = min(start + stretch_records, tables.offset)
        rows = {
            name: tables.rows(name, columns, start, until).sort_by([(column, "ascending") for column in columns[:2]])
            for name, columns in _COLUMNS.items()
        }
        found += of_stretch(rows, before)
        before = _after(rows, before)
        progress(until + 1)
    return merged(found)


def of_stretch(rows: Rows, before: Before) -> list[Finding]:
    """What is wrong with the rows of a stretch of the log, each table by its first two columns. Pure."""
    return [
        *_pairs(rows[REQUESTS], rows[VERDICTS]),
        *_verdicts(rows[VERDICTS], rows[CONFLICTS]),
        *_completions(rows[VERDICTS], rows[COMPLETIONS]),
        *_dense(rows[COMPLETIONS], _offsets(rows[LOST]), before),
        *_epochs(rows[EPOCHS], before),
        *_found(LOST, "is there twice", _repeated(_offsets(rows[LOST]))),
    ]


async def check_against_log(
    tables: TablesView, log: RequestLog, progress: Callable[[int], None] = lambda offset: None
) -> list[Finding]:
    """Whether each request that counts, each barrier in force and each lost record is in its table, and no other row.

    Reads the log from its beginning. Raises LogUnavailable, LogRefused, FormatUnknown and PlaceUnavailable.
    """
    found: list[Finding] = []
    position = begin(tables.topic_id)
    reader = await open_reading_on(log, 0)
    try:
        while (left := tables.offset - position.offset) > 0:
            records = await reader.read(min(RUN_RECORDS, left), READ_WAIT_S)
            if not records:
                raise LogUnavailable(f"no record after offset {position.offset}, and the tables end at {tables.offset}")
            reading = read_records(position, records)
            for name, due in _due(reading, records).items():
                there = _offsets(tables.rows(name, ("log_offset",), position.offset, reading.position.offset))
                found += _found(name, "lacks a record of the log", np.setdiff1d(due, there))
                found += _found(name, "has a record that does not count in the log", np.setdiff1d(there, due))
            position = reading.position
            progress(position.offset + 1)
    finally:
        await reader.close()
    return merged(found)


def _due(reading: Reading, records: LogRecords) -> dict[str, Offsets]:
    """The offsets of the records that each table has a row for."""
    first = records[0][0]
    offsets = {
        REQUESTS: [one.offset for one in reading.counted if isinstance(one, CountedRequest)],
        EPOCHS: [one.offset for one in reading.barriers],
        LOST: [one.offset for one in reading.voids if salvage_named(*records[one.offset - first]) is not None],
    }
    return {name: np.array(found, np.int64) for name, found in offsets.items()}


def merged(found: Iterable[Finding]) -> list[Finding]:
    """One finding for each problem of a table; the first offset is the lowest."""
    of_all: dict[tuple[str, str], Finding] = {}
    for one in found:
        earlier = of_all.get((one.table, one.problem), one._replace(records=0))
        first_offset = min(earlier.first_offset, one.first_offset)
        of_all[one.table, one.problem] = Finding(*one[:2], earlier.records + one.records, first_offset)
    return sorted(of_all.values(), key=lambda one: (one.first_offset, one.table, one.problem))


def _after(rows: Rows, before: Before) -> Before:
    completions, epochs, lost = rows[COMPLETIONS], rows[EPOCHS], _offsets(rows[LOST])
    ledger_offset, completed_offset, lost_since, epoch = before
    if len(completions):
        ledger_offset, completed_offset = _last(completions, "ledger_offset"), _last(completions, "log_offset")
        lost_since = False
    lost_since |= bool(np.any(lost > completed_offset))
    return Before(ledger_offset, completed_offset, lost_since, _last(epochs, "epoch") if len(epochs) else epoch)


def _pairs(requests: pa.Table, verdicts: pa.Table) -> Iterator[Finding]:
    asked, judged = _offsets(requests), _offsets(verdicts)
    yield from _found(REQUESTS, "is there twice", _repeated(asked))
    yield from _found(VERDICTS, "is there twice", _repeated(judged))
    yield from _found(REQUESTS, "has no verdict", np.setdiff1d(asked, judged))
    yield from _found(VERDICTS, "has no request", np.setdiff1d(judged, asked))


def _verdicts(verdicts: pa.Table, conflicts: pa.Table) -> Iterator[Finding]:
    offsets, refused = _offsets(verdicts), _offsets(conflicts)
    conflicting = offsets[_is(verdicts, Code.STATE_CONFLICT.name)]
    at = _whole(verdicts, "notarised_offset")
    accepted = _is(verdicts, NOTARISED, DEDUPLICATED)
    wrong = (accepted != (at != BEGIN)) | (at > offsets)
    yield from _found(VERDICTS, "contradicts its notarised_offset", offsets[wrong])
    yield from _found(VERDICTS, "is STATE_CONFLICT without a state", np.setdiff1d(conflicting, refused))
    yield from _found(CONFLICTS, "is of no STATE_CONFLICT", np.setdiff1d(refused, conflicting))
    late = refused[_whole(conflicts, "consumed_offset") >= refused]
    yield from _found(CONFLICTS, "was consumed after the refusal", late)
    keys = conflicts.select(["log_offset", "state", "usage"])
    counted = keys.group_by(keys.column_names).aggregate([([], "count_all")])
    yield from _found(CONFLICTS, "is there twice", _offsets(counted.filter(pc.greater(counted["count_all"], 1))))


def _completions(verdicts: pa.Table, completions: pa.Table) -> Iterator[Finding]:
    judged, completed = _offsets(verdicts), _offsets(completions)
    yield from _found(COMPLETIONS, "lacks a verdict's completion", np.setdiff1d(judged, completed))
    yield from _found(COMPLETIONS, "has no verdict", np.setdiff1d(completed, judged))
    ours, theirs = (_first_each(one) for one in (verdicts, completions))
    both = np.intersect1d(judged, completed)
    ours, theirs = (one.filter(pc.is_in(one["log_offset"], pa.array(both))) for one in (ours, theirs))
    same = np.asarray(pc.equal(ours["outcome"], theirs["outcome"]))
    same &= _whole(ours, "notarised_offset") == _whole(theirs, "notarised_offset")
    yield from _found(COMPLETIONS, "contradicts its verdict", both[~same])


def _dense(completions: pa.Table, lost: Offsets, before: Before) -> Iterator[Finding]:
    """Ledger offsets follow each other in log order. Only past a lost record may they go on higher."""
    offsets, numbers = _offsets(completions), _whole(completions, "ledger_offset")
    steps = np.diff(numbers, prepend=before.ledger_offset)
    earlier = np.concatenate([[before.completed_offset], offsets])[:-1]
    lost_between = np.searchsorted(lost, offsets) > np.searchsorted(lost, earlier)
    lost_between[:1] |= before.lost_since
    wrong = np.where(lost_between, steps < 1, steps != 1)
    yield from _found(COMPLETIONS, "has a ledger_offset that does not follow the one before", offsets[wrong])


def _epochs(epochs: pa.Table, before: Before) -> Iterator[Finding]:
    offsets, numbers = _offsets(epochs), _whole(epochs, "epoch")
    wrong = np.diff(numbers, prepend=before.epoch) < 1
    yield from _found(EPOCHS, "has an epoch that is not above the one before", offsets[wrong])


def _found(table: str, problem: str, offsets: Offsets) -> Iterator[Finding]:
    if len(offsets):
        yield Finding(table, problem, len(offsets), int(offsets[0]))


def _offsets(rows: pa.Table) -> Offsets:
    return _whole(rows, "log_offset")


def _whole(rows: pa.Table, column: str) -> Offsets:
    """A column of whole numbers; BEGIN for null, which no offset is."""
    found: Offsets = pc.fill_null(rows[column], BEGIN).to_numpy()
    return found


def _is(rows: pa.Table, *outcomes: str) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return np.asarray(pc.is_in(rows["outcome"], pa.array(outcomes)), bool)


def _repeated(offsets: Offsets) -> Offsets:
    values, counts = np.unique(offsets, return_counts=True)
    return values[counts > 1]


def _first_each(rows: pa.Table) -> pa.Table:
    """The first row of each log offset, which the rows are in order of."""
    _, at = np.unique(_offsets(rows), return_index=True)
    return rows.take(pa.array(at))


def _last(rows: pa.Table, column: str) -> int:
    return int(rows[column][-1].as_py())
