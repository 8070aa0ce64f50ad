"""An index made of ready table files: a bulk builder writes it without a replica, key range by key range.

Any process may write the files of a range, in any order. `adopt_tables` makes them an index and writes the position
last. So if a builder dies, RocksIndex refuses what it left, and never takes it for a smaller index.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from rocksdict import IngestExternalFileOptions, Rdict, SstFileWriter

from replica.index.interface import POSITION_KEY
from replica.index.rocks import encode_counted_position, table_options
from replica.notary.errors import IndexUnreadable
from replica.notary.position import Position


def write_table(path: Path, entries: Iterable[tuple[bytes, bytes]]) -> None:
    """Write a table file with one entry or more, in ascending key order.

    Raises IndexUnreadable when the order is wrong, or the file cannot be written.
    """
    try:
        writer = SstFileWriter(table_options())
        writer.open(str(path))
        for key, value in entries:
            writer[key] = value
        writer.finish()
    except Exception as error:  # rocksdict raises nothing more specific
        raise IndexUnreadable(f"the table {path} cannot be written: {error}") from None


def adopt_tables(folder: Path, tables: Sequence[Path], entry_count: int, position: Position) -> None:
    """Make an index of table files, and move them into its folder. The folder must not hold an index yet.

    No key may be in two files. Raises IndexUnreadable when RocksDB refuses them.
    """
    if folder.exists() and any(folder.iterdir()):
        raise IndexUnreadable(f"{folder} is not empty: an index is built in a new folder")
    moving = IngestExternalFileOptions()
    moving.set_move_files(True)
    try:
        db = Rdict(str(folder), table_options(create=True))
        try:
            if tables:
                db.ingest_external_file([str(table) for table in tables], moving)
            db.put(POSITION_KEY, encode_counted_position(entry_count, position))
            db.flush()
        finally:
            db.close()
    except Exception as error:
        raise IndexUnreadable(f"no index could be made of the tables in {folder}: {error}") from None
