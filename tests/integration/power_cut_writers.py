"""Writes to a part of the notary, in a process of its own that a power cut ends: `PART FOLDER`.

It writes BEFORE things, prints a line and waits for one; then it prints a line after each further thing that the part
says it has, and stands still after AFTER.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

from rocksdict import Options, Rdict, WriteOptions

from ha.raft.messages import Entry, Kind
from replica.log.raft.files import Folder
from replica.log.raft.segments import Job, SegmentLog, fresh
from replica.notary.position import Position
from replica.store.sqlite.file import LedgerFile
from replica.store.sqlite.tables import FILE
from tests.contracts.store_contract import TOPIC, at, command, completion

BEFORE, AFTER = 100, 100
Write = Callable[[int], object]
Read = Callable[[Path], int]


class Unsynced(Folder):
    """A log node's files, none of which it ever syncs."""

    def sync(self, name: str) -> None:
        pass

    def sync_names(self) -> None:
        pass


def index(folder: Path, *, sync: bool) -> Write:
    """RocksDB, as the index has it."""
    options = WriteOptions()
    options.sync = sync
    db = Rdict(str(folder), Options(raw_mode=True))
    db.set_write_options(options)
    return lambda number: db.__setitem__(number.to_bytes(8, "big"), b"entry")


def entries(folder: Path) -> int:
    """How many entries it has."""
    db = Rdict(str(folder), Options(raw_mode=True))
    try:
        return len(list(db.keys()))
    finally:
        db.close()


def segments(folder: Path, files: type[Folder]) -> Write:
    """A log node's segments."""
    files_of_log = files(folder)
    fresh(files_of_log)
    log = SegmentLog(files_of_log)
    return lambda number: log.carry_out(Job(None, [[Entry(1, number + 1, Kind.RAW, b"record")]], 0))


def records(folder: Path) -> int:
    """How many records they have."""
    log = SegmentLog(Folder(folder))
    try:
        return log.last_idx
    finally:
        log.close()


def ledger(folder: Path) -> Write:
    """A replica's own ledger."""
    file = LedgerFile(folder / FILE, TOPIC)
    return lambda number: file.append([completion(command(number), number)], [], at(number))


def completions(folder: Path) -> int:
    """How many completions it has, all of them up to its position."""
    file = LedgerFile(folder / FILE, TOPIC)
    try:
        found = file.progress()
        position: Position | None = found.position
        assert position is not None
        assert position.offset + 1 == found.ledger_end
        return found.ledger_end
    finally:
        file.close()


def table(folder: Path) -> Write:
    """SQLite that syncs at each commit, beside the ledger, which does not."""
    connection = sqlite3.connect(folder / "table", isolation_level=None)
    connection.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; CREATE TABLE t (n INTEGER)")
    return lambda number: connection.execute("INSERT INTO t VALUES (?)", (number,))


def rows(folder: Path) -> int:
    """How many rows it has."""
    connection = sqlite3.connect(folder / "table")
    ((count,),) = connection.execute("SELECT count(*) FROM t").fetchall()
    connection.close()
    return int(count)


PARTS: dict[str, tuple[Callable[[Path], Write], Read]] = {
    "index, synced": (lambda folder: index(folder, sync=True), entries),
    "index, as it is": (lambda folder: index(folder, sync=False), entries),
    "log node": (lambda folder: segments(folder, Folder), records),
    "log node that never syncs": (lambda folder: segments(folder, Unsynced), records),
    "ledger, as it is": (ledger, completions),
    "SQLite, synced": (table, rows),
}


def main(part: str, folder: Path) -> None:
    """Write."""
    write = PARTS[part][0](folder)
    for number in range(BEFORE):
        write(number)
    print(BEFORE, flush=True)
    sys.stdin.readline()
    for number in range(BEFORE, BEFORE + AFTER):
        write(number)
        print(number + 1, flush=True)
    sys.stdin.read()
    os._exit(1)  # nobody asked it to end in order


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
