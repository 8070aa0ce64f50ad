"""An index made of ready table files: a bulk builder writes it without a replica, key range by key range.

Any process may write the files of a range, in any order. `adopt_tables` makes them an index and writes the position
last, in each of its databases. So if a builder dies, RocksIndex refuses what it left, and never takes it for a
smaller index.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from rocksdict import IngestExternalFileOptions, Rdict, SstFileWriter

from replica.index.interface import COMMANDS_POSITION_KEY, POSITION_KEY
from replica.index.rocks import COMMANDS_NAME, PARTIES_NAME, RocksParties, encode_counted_position, table_options
from replica.notary.errors import Code, IndexUnreadable
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


def adopt_tables(
    folder: Path,
    tables: Tables,
    position: Position,
    commands: Tables | None = None,
    parties: Mapping[bytes, bytes] | None = None,
) -> None:
    """Make an index of table files, and move them into its folder. The folder must not hold an index yet.

    `commands`, `parties`: the acceptances of commands, and the officers and registrations, up to the position. Without
    them a replica completes them from the log. They are made first, as everywhere: what is ahead of the states does no
    harm. Raises IndexUnreadable when RocksDB
    refuses the files.
    """
    if folder.exists() and any(folder.iterdir()):
        raise IndexUnreadable(f"{folder} is not empty: move it away", Code.NOT_POSSIBLE_NOW)
    folder.mkdir(parents=True, exist_ok=True)
    if commands is not None:
        _adopt(folder / COMMANDS_NAME, commands, COMMANDS_POSITION_KEY, position)
    if parties is not None:
        table = RocksParties(folder / PARTIES_NAME)
        table.write(parties, position)
        table.close()
    _adopt(folder, tables, POSITION_KEY, position)


def _adopt(folder: Path, tables: Tables, position_key: bytes, position: Position) -> None:
    moving = IngestExternalFileOptions()
    moving.set_move_files(True)
    try:
        db = Rdict(str(folder), table_options(create=True))
        try:
            if tables.paths:
                db.ingest_external_file([str(path) for path in tables.paths], moving)
            db.put(position_key, encode_counted_position(tables.entry_count, position))
            db.flush()
        finally:
            db.close()
    except Exception as error:
        raise IndexUnreadable(f"no index could be made of the tables in {folder}: {error}") from None
