"""The upkeep of a table: few files, sorted where look-ups profit, and nothing that no reader needs any more.

Safe while the tables' job appends: what is rewritten has the same rows, an append and a rewriting never touch the same
files, and a file is removed only when it was replaced, or left behind by a writer that died, long enough ago.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import date
from typing import NamedTuple

import pyarrow as pa
from deltalake import DeltaTable, WriterProperties

from pipeline.tables.delta import as_ours, opened
from pipeline.tables.rows import CONFLICTS
from replica.notary.errors import ConfigError
from replica.notary.places import Place, inside

FILE_BYTES = 128 << 20  # to which files are joined; what is at least half of it stays as it is
MEMORY_BYTES = 1 << 30  # of a day that is sorted; beyond, it spills to the folder for temporary files
KEPT_MIN_H = 24  # no reader's query and no append takes as long
SORTED_BY = {CONFLICTS: "state"}
SORTED_GROUP_ROWS = 1 << 16  # in a group of rows: a look-up reads one, as each has its least and greatest state


class Retention(int):
    """Hours for which replaced files stay. Raises ConfigError below `KEPT_MIN_H`: readers may still have them open."""

    def __new__(cls, hours: int) -> Retention:
        if hours < KEPT_MIN_H:
            raise ConfigError(
                f"replaced files stay for at least {KEPT_MIN_H} h, not {hours}: readers may have them open"
            )
        return super().__new__(cls, hours)


class Maintained(NamedTuple):
    """What was done about a table: how many files it had and has, and how many were removed from its place."""

    files_before: int
    files: int
    removed_files: int


class File(NamedTuple):
    """A file of a table, and the day that it is of."""

    day: date
    size_bytes: int


def days_to_join(files: Iterable[File], file_bytes: int = FILE_BYTES) -> list[date]:
    """The days that have several files of less than half the size: a day that was joined is not joined again."""
    small = Counter(one.day for one in files if one.size_bytes < file_bytes // 2)
    return sorted(day for day, count in small.items() if count > 1)


def maintain(folder: Place, name: str, retention: Retention) -> Maintained:
    """Join small files, sort them where that pays, remove what was replaced, and note the table's state in one file.

    Raises ArchiveContended where another process maintains the table, PlaceUnavailable and PlaceAccessDenied.
    """
    place = inside(folder, name)
    with as_ours(place):
        table = opened(place)
        before = _files(table)
        for day in days_to_join(before):
            _join(table, day, SORTED_BY.get(name))
        removed = table.vacuum(retention, dry_run=False, enforce_retention_duration=False, full=True)
        table.update_incremental()
        table.create_checkpoint()
        table.cleanup_metadata()
        return Maintained(len(before), len(_files(table)), len(removed))


def _join(table: DeltaTable, day: date, sorted_by: str | None) -> None:
    of_day = [("day", "=", day.isoformat())]
    if sorted_by is None:
        table.optimize.compact(of_day, target_size=FILE_BYTES, max_concurrent_tasks=1)
    else:
        table.optimize.z_order(
            [sorted_by],
            of_day,
            target_size=FILE_BYTES,
            max_concurrent_tasks=1,
            max_spill_size=MEMORY_BYTES,
            writer_properties=WriterProperties(max_row_group_size=SORTED_GROUP_ROWS),
        )


def _files(table: DeltaTable) -> list[File]:
    found = pa.table(table.get_add_actions(flatten=True))
    return [File(*row) for row in zip(found["partition.day"].to_pylist(), found["size_bytes"].to_pylist(), strict=True)]
