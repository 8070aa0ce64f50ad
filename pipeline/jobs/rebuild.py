"""Rebuilds the committed-state index from the log: the same index that a replica makes from it, in less time.

Each range of keys becomes a table file, written where it was sorted; RocksDB takes the files as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
from pyspark.sql import SparkSession

from pipeline.jobs.judge import Judged, judge_log
from pipeline.jobs.slices import LogSlices
from pipeline.jobs.tasks import attempt_file, numbered
from pipeline.judging.entries import entries, key_values
from replica.index.tables import adopt_tables, write_table
from replica.notary.position import Position


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
    ranges: int | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Rebuilt:
    """Make an index in `folder`, which must be new, of everything in the log.

    `work`: a folder that all workers and this process reach, best on the file system of `folder`; what is left in it
    may be deleted. `progress` gets a line of progress for each step. A rebuild that dies leaves no index in `folder`.
    Raises as `judge_log` and `adopt_tables` do.
    """
    began_s = monotonic()
    progress(f"judging {len(log)} slices of the log")
    judged = judge_log(spark, log, work, ranges=ranges)
    judged_s = monotonic()
    progress(
        f"writing {len(judged.orders)} tables; {judged.dropped_count} requests lost {judged.contested_count} claims"
    )
    tables = _write_tables(spark, judged, work)
    written_s = monotonic()
    entry_count = sum(count for _, count in tables)
    folder.mkdir(parents=True, exist_ok=True)
    adopt_tables(folder, [Path(path) for path, _ in tables], entry_count, judged.plan.position)
    steps_s = {
        "judge": judged_s - began_s,
        "write_tables": written_s - judged_s,
        "adopt": monotonic() - written_s,
    }
    return Rebuilt(
        judged.plan.position, entry_count, len(tables), judged.contested_count, judged.dropped_count, steps_s
    )


def _write_tables(spark: SparkSession, judged: Judged, work: Path) -> list[tuple[str, int]]:
    """Table files in key order, and the number of entries in each."""

    def write(number: int) -> Iterator[dict[str, Any]]:
        found = entries(judged.claims(number), judged.dropped_marks())
        if len(found):
            path = attempt_file(work, f"range-{number:05d}", ".sst")
            write_table(path, key_values(found))
            yield {"number": number, "path": str(path), "entries": len(found)}

    rows = numbered(spark, len(judged.orders), write, "number bigint, path string, entries bigint").collect()
    return [(row.path, row.entries) for row in sorted(rows, key=lambda row: row.number)]
