"""An index made of ready table files: a bulk builder writes it without a replica, key range by key range.

Any process may write the files of a range, in any order. `adopt_tables` makes them an index and writes the position
last. So if a builder dies, RocksIndex refuses what it left, and never takes it for a smaller index.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from rocksdict import IngestExternalFileOptions, Rdict, SstFileWriter, WriteBatch

from replica.index.rocks import StoredPositions, table_options
from replica.notary.codes import Code
from replica.notary.errors import IndexUnreadable
from replica.notary.position import Position


def write_table(path: Path, entries: Iterator[tuple[bytes, bytes]]) -> int:
    """Write a table file of entries in ascending key order; returns how many. There is no file if there are none.

    Raises IndexUnreadable when the order is wrong, or the file cannot be written.
    """
    first = next(entries, None)
    if first is None:
        return 0
    count = 0
    try:
        writer = SstFileWriter(table_options())
        writer.open(str(path))
        for count, (key, value) in enumerate(chain([first], entries), 1):  # noqa: B007
            writer[key] = value
        writer.finish()
    except Exception as error:  # rocksdict raises nothing more specific
        raise IndexUnreadable(f"the table {path} cannot be written: {error}") from None
    return count


class Tables(NamedTuple):
    """Table files, and the number of entries in all of them. No key is in two files."""

    paths: Sequence[Path]
    entry_count: int


def adopt_tables(folder: Path, tables: Tables, position: Position) -> None:
    """Make an index of table files, and move them into its folder. The folder must not hold an index yet.

    Raises IndexUnreadable when RocksDB refuses the files.
    """
    if folder.exists() and any(folder.iterdir()):
        raise IndexUnreadable(f"{folder} is not empty: move it away", Code.NOT_POSSIBLE_NOW)
    folder.mkdir(parents=True, exist_ok=True)
    moving = IngestExternalFileOptions()
    moving.set_move_files(True)
    try:
        db = Rdict(str(folder), table_options(create=True))
        try:
            if tables.paths:
                db.ingest_external_file([str(path) for path in tables.paths], moving)
            put_positions(db, StoredPositions(tables.entry_count, position))
            db.flush()
        finally:
            db.close()
    except Exception as error:
        raise IndexUnreadable(f"no index could be made of the tables in {folder}: {error}") from None


def put_positions(db: Rdict, at: StoredPositions) -> None:
    """Write the positions of an index, in one batch."""
    batch = WriteBatch(raw_mode=True)
    for key, value in at.encoded().items():
        batch.put(key, value)
    db.write(batch)
