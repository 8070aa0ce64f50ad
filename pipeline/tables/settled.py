"""Answers a trace as a judgement of the whole log would, from the tables and the log's records after them.

The tables have verdicts up to an offset. A verdict depends on the records before it alone, so those stand. Records that
the tables lack are read and searched, not judged: while none of them names what is looked for, the tables' answer is
the log's. Otherwise the whole log has to be judged, and the caller is told why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from pipeline.judging.columns import decode
from pipeline.judging.evidence import evidence
from pipeline.judging.lost import Lost, lost_ranges
from pipeline.judging.subjects import Subject
from pipeline.tables.read import TablesView, lost_in
from pipeline.tables.trace import TableSubject, trace_tables
from replica.notary.errors import InvariantBroken, LogRefused
from replica.notary.records import are_known

TAIL_RECORDS_MAX = 200_000  # that are searched: about a second; beyond, `notary tables run` is behind or not running
NEAR_RECORDS = 1_000  # records closer than this are read in one stretch

ReadStretch = Callable[[int, int], Iterable[pa.RecordBatch]]
"""The log's records [first, end), with columns `offset` and `value`."""


class Question(NamedTuple):
    """What is looked for, in the tables and in records; `limit`: how many requests at most, the first ones."""

    in_tables: TableSubject
    in_log: Subject
    limit: int


class Settled(NamedTuple):
    """What a judgement of the whole log would give; `tail_records`: how many after the tables were searched; `lost`:
    ranges of the log in which other requests of interest may have been."""

    entries: list[dict[str, Any]]
    tail_records: int
    lost: list[Lost]


def settle(tables: TablesView, end_offset: int, read: ReadStretch, asked: Question) -> Settled | str:
    """The first requests of interest with their evidence, in log order; or why the log must be judged for it.

    `end_offset`: the log's. Raises PlaceUnavailable, LogUnavailable and LogRefused.
    """
    tail_records = end_offset - 1 - tables.offset
    if tail_records < 0:
        return f"the tables end at offset {tables.offset}, and the log at {end_offset - 1}"
    try:
        entries = trace_tables(tables, asked.in_tables, asked.limit)
    except InvariantBroken as error:
        return error.detail
    searched = 0
    if len(entries) < asked.limit and tail_records > 0:
        if tail_records > TAIL_RECORDS_MAX:
            return f"the tables lack the log's newest {tail_records:,} records"
        found = _first_to_judge(read(tables.offset + 1, end_offset), asked.in_log)
        if found is not None:
            return f"the record at offset {found[0]} {found[1]}, and the tables end at {tables.offset}"
        searched = tail_records
    values = _values(read, [entry["offset"] for entry in entries if "lost" not in entry])
    proven = [entry if "lost" in entry else entry | _proven(entry, values) for entry in entries]
    return Settled(proven, searched, lost_in(tables))


def stretches_of(offsets: Sequence[int], near_records: int = NEAR_RECORDS) -> list[tuple[int, int]]:
    """Ranges [first, end) that have these ascending offsets; what lies between near ones is read as well."""
    ranges: list[tuple[int, int]] = []
    for offset in offsets:
        if ranges and offset - ranges[-1][1] < near_records:
            ranges[-1] = (ranges[-1][0], offset + 1)
        else:
            ranges.append((offset, offset + 1))
    return ranges


def _first_to_judge(batches: Iterable[pa.RecordBatch], subject: Subject) -> tuple[int, str] | None:
    """The offset of the first request of interest, whether it counts or not, or of a barrier after which requests may
    look like nothing that this release can read; and what there is about it."""
    for batch in batches:
        columns = decode(batch.column("offset")[0].as_py(), batch.column("value"))
        for offset, barrier in columns.barriers:
            if not are_known(barrier.record_format, barrier.rules_version):
                return offset, "is a barrier of a newer release"
        if ranges := lost_ranges(columns):
            return ranges[0].first, "was lost"
        found = columns.rows[subject.pick(columns, np.arange(len(columns.rows)))]
        if len(found):
            return columns.first_offset + int(found[0]), "names it as well"
    return None


def _values(read: ReadStretch, offsets: Sequence[int]) -> dict[int, bytes]:
    wanted = set(offsets)
    return {
        offset: value for first, end in stretches_of(offsets) for offset, value in _rows(read(first, end))
        if offset in wanted
    }  # fmt: skip


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, bytes]]:
    for batch in batches:
        yield from zip(batch.column("offset").to_pylist(), batch.column("value").to_pylist(), strict=True)


def _proven(entry: Mapping[str, Any], values: Mapping[int, bytes]) -> dict[str, Any]:
    """The evidence of a request, which must be of the request that the tables have there."""
    proof = evidence(entry["offset"], values[entry["offset"]])
    differing = [name for name, value in proof.items() if entry.get(name, value) != value]
    if differing:
        raise LogRefused(f"the log's record at offset {entry['offset']} is not the one in the tables: {differing[0]}")
    return proof
