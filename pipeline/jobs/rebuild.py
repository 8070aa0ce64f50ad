"""Rebuilds the committed-state index from the log: the same index that a replica makes from it, in less time.

Each range of keys becomes a table file, written where it was sorted; RocksDB takes the files as they are. Officers and
registrations are few: they come with the plan, and are one more file.

The tables take as much disk as the claims that they are made of. So they are written some ranges at a time, and the
claims of those are freed: a rebuild needs the disk of the index and an eighth, not twice that of the index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
from pyspark.sql import SparkSession

from pipeline.jobs.judge import Sorted, judge_log
from pipeline.jobs.slices import LogSlices
from pipeline.jobs.tasks import attempt_file, numbered
from pipeline.judging.commands import COMMAND
from pipeline.judging.commands import acceptances as accepted
from pipeline.judging.commands import key_values as acceptance_values
from pipeline.judging.entries import entries, key_values
from replica.index.tables import Tables, adopt_tables, write_table
from replica.notary.position import Position
from replica.notary.salvage import NO_SALVAGES, Salvages

TOGETHER_MIN, TOGETHER_PARTS = 32, 16
"""Ranges that are written before their claims are freed: a sixteenth of all, but at least so many. Each such step ends
when its slowest task does, so there should be few."""


class Rebuilt(msgspec.Struct, frozen=True):
    """What a rebuild made. `steps_s`: seconds of each step."""

    position: Position
    entry_count: int
    table_count: int
    contested_count: int  # claims on keys that more than one request wanted
    dropped_count: int  # requests that got nothing for one of them
    steps_s: dict[str, float]


def rebuild_index(
    spark: SparkSession,
    log: LogSlices,
    folder: Path,
    work: Path,
    *,
    salvages: Salvages = NO_SALVAGES,
    ranges: int | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Rebuilt:
    """Make an index in `folder`, which must be new, of everything in the log.

    `salvages`: those that lost records name. `work`: a folder that all workers and this process reach, best on the file
    system of `folder`; what is left in it may be deleted. `progress` gets a line of progress for each step. A rebuild
    that dies leaves no index in `folder`. Raises as `judge_log` and `adopt_tables` do.
    """
    began_s = monotonic()
    progress(f"judging {len(log)} slices of the log")
    judged = judge_log(spark, log, work, salvages=salvages, ranges=ranges)
    judged_s = monotonic()
    progress(
        f"writing {len(judged.by_key) + len(judged.commands)} tables; {judged.dropped_count} requests lost"
        f" {judged.contested_count} claims"
    )

    def entries_in(number: int) -> Iterator[tuple[bytes, bytes]]:
        return key_values(entries(judged.claims(number), judged.dropped_marks()))

    def acceptances_in(number: int) -> Iterator[tuple[bytes, bytes]]:
        return acceptance_values(accepted(judged.commands.rows(number, COMMAND), judged.unusual_marks()))

    parts = [
        _write_tables(spark, work, "range", judged.by_key, entries_in),
        _write_tables(spark, work, "commands", judged.commands, acceptances_in),
        _write_registrations(work, judged.plan.parties),
    ]
    tables = Tables([path for part in parts for path in part.paths], sum(part.entry_count for part in parts))
    written_s = monotonic()
    adopt_tables(folder, tables, judged.plan.position)
    steps_s = {
        "judge": judged_s - began_s,
        "write_tables": written_s - judged_s,
        "adopt": monotonic() - written_s,
    }
    return Rebuilt(
        judged.plan.position,
        tables.entry_count,
        len(tables.paths),
        judged.contested_count,
        judged.dropped_count,
        steps_s,
    )


def _write_tables(
    spark: SparkSession, work: Path, name: str, ranges: Sorted, found: Callable[[int], Iterator[tuple[bytes, bytes]]]
) -> Tables:
    """Table files in key order: one for each range that has entries. The ranges are freed."""
    rows: list[Any] = []
    together = max(TOGETHER_MIN, len(ranges) // TOGETHER_PARTS)
    for first in range(0, len(ranges), together):
        end = min(first + together, len(ranges))
        rows += _write_some(spark, work, name, range(first, end), found)
        ranges.free(first, end)
    return Tables([Path(row.path) for row in rows], sum(row.entries for row in rows))


def _write_registrations(work: Path, entries: Mapping[bytes, bytes]) -> Tables:
    path = attempt_file(work, "registrations", ".sst")
    count = write_table(path, iter(sorted(entries.items())))
    return Tables([path] if count else [], count)


def _write_some(
    spark: SparkSession, work: Path, name: str, ranges: range, found: Callable[[int], Iterator[tuple[bytes, bytes]]]
) -> list[Any]:
    def write(at: int) -> Iterator[dict[str, Any]]:
        number = ranges[at]
        path = attempt_file(work, f"{name}-{number:05d}", ".sst")
        if count := write_table(path, found(number)):
            yield {"number": number, "path": str(path), "entries": count}

    rows = numbered(spark, len(ranges), write, "number bigint, path string, entries bigint").collect()
    return sorted(rows, key=lambda row: row.number)
