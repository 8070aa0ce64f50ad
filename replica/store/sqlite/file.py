"""An embedded ledger's file: what is written to it, in one transaction with the position. No tasks, no threads.

One replica writes it, on one connection. Others read it on connections of their own (replica/store/sqlite/reader.py).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from replica.notary.errors import FormatUnknown, InvariantBroken, StoreUnavailable
from replica.notary.position import Position, decode_position, encode_position
from replica.store.completions import starts_after, whole_from
from replica.store.interface import Pruned, Published, Row
from replica.store.sqlite.tables import SCHEMA, VERSION, LedgerDamaged, connect, restored, stored

READ = """SELECT ledger_offset, log_offset, recorded_us, body, checksum FROM completion
            WHERE ledger_offset > ? AND ledger_offset <= ? ORDER BY ledger_offset LIMIT ?"""
_DELETED_TOGETHER = 5_000
_READ_TOGETHER = 1_000
# The file may be as it should be, but the disk is full, somebody holds the file, or it may not be opened.
_REFUSALS = (
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
)
_UNREADABLE = (sqlite3.SQLITE_IOERR_READ, sqlite3.SQLITE_IOERR_SHORT_READ)


class Begun(msgspec.Struct, frozen=True):
    """An activation as the log has it: its epoch and replica, its barrier's offset, the highest stamp before it.

    `replica` is empty for a release: the barrier by which the activation before gave its lease up.
    """

    epoch: int
    replica: str
    log_offset: int
    stamp_us: int


class LedgerFile:
    """The ledger of one log. Raises LedgerDamaged when the file cannot be what this class wrote, and StoreUnavailable
    when the disk refuses."""

    def __init__(self, path: Path, topic_id: str) -> None:
        """Open the file, or begin one. Raises LedgerDamaged also for a file of another version or another log."""
        self._path = path
        with _errors_named():
            self._connection = connect(path, writes=True)
            self._identity = _identity(path)
            try:
                self._begin(topic_id)
            except BaseException:
                self._connection.close()
                raise

    def progress(self) -> Published:
        """How far the ledger goes, and up to where its completions may be gone."""
        with _errors_named():
            row = self._connection.execute("SELECT position, ledger_end, pruned_to FROM progress").fetchone()
        position, ledger_end, pruned_to = row
        return Published(position_of(position), ledger_end, pruned_to)

    def append(self, completions: Sequence[Row], begun: Sequence[Begun], position: Position) -> Published:
        """Add what a run of records decided, and move the position. See ParticipantStore.publish.

        Raises InvariantBroken unless the position moves forward.
        """
        with _errors_named(), self._transaction() as execute:
            end: int
            ((before, end, pruned_to),) = execute("SELECT position, ledger_end, pruned_to FROM progress").fetchall()
            _check_forward(position_of(before), position)
            ledger_end = position.ledger_offset
            if end > starts_after(completions, ledger_end):
                raise InvariantBroken(f"the ledger ends at {end}, and completions go on before that")
            rows = [stored(*row) for row in completions]
            self._connection.executemany("INSERT INTO completion VALUES (?, ?, ?, ?, ?)", rows)
            self._connection.executemany(
                "INSERT INTO activation VALUES (?, ?, ?, ?)", [msgspec.structs.astuple(one) for one in begun]
            )
            if end < (start := whole_from(completions, ledger_end)):
                pruned_to = start
            values = encode_position(position), ledger_end, pruned_to
            execute("UPDATE progress SET position = ?, ledger_end = ?, pruned_to = ?", values)
            return Published(position, ledger_end, pruned_to)

    def prune(self, up_to: int | None, recorded_before_us: int) -> Pruned:
        """Move the bound as ParticipantStore.prune does. Old enough is safe."""
        with _errors_named(), self._transaction() as execute:
            ((pruned_to, end),) = execute("SELECT pruned_to, ledger_end FROM progress").fetchall()
            safe_to = self._newest_before(recorded_before_us, pruned_to, end)
            wanted = safe_to if up_to is None else up_to
            if pruned_to < wanted <= safe_to:
                execute("UPDATE progress SET pruned_to = ?", (wanted,))
                pruned_to = wanted
            return Pruned(pruned_to, safe_to)

    def delete_some(self) -> int:
        """Delete some of the completions that may be gone; returns how many."""
        with _errors_named(), self._transaction() as execute:
            deleted: int = execute(
                "DELETE FROM completion WHERE ledger_offset IN (SELECT ledger_offset FROM completion"
                " WHERE ledger_offset <= (SELECT pruned_to FROM progress) ORDER BY ledger_offset LIMIT ?)",
                (_DELETED_TOGETHER,),
            ).rowcount
            return deleted

    def rows(self) -> Iterator[Row]:
        """All completions that may not be gone, in order. Raises LedgerDamaged at the first that is not as it was."""
        progress = self.progress()
        after = progress.pruned_to
        while after < progress.ledger_end:
            with _errors_named():
                page = self._connection.execute(READ, (after, progress.ledger_end, _READ_TOGETHER)).fetchall()
            if not page:
                raise LedgerDamaged(f"the completion at ledger offset {after + 1} is not there")
            for row in page:
                after += 1
                if row[0] != after:
                    raise LedgerDamaged(f"the completion at ledger offset {after} is not there")
                yield restored(row)

    def check(self, after: int, count: int) -> int:
        """Read so many completions after an offset; returns where to go on, 0 at the end. Raises LedgerDamaged."""
        progress = self.progress()
        after = max(after, progress.pruned_to)
        until = min(after + count, progress.ledger_end)
        with _errors_named():
            page = self._connection.execute(READ, (after, until, count)).fetchall()
        found = [restored(row)[0] for row in page]
        if found != list(range(after + 1, until + 1)):
            raise LedgerDamaged(f"not all completions from ledger offset {after + 1} to {until} are there")
        return until if until < progress.ledger_end else 0

    def close(self) -> None:
        """End; may be repeated."""
        self._connection.close()

    def _begin(self, topic_id: str) -> None:
        ((version,),) = self._connection.execute("PRAGMA user_version").fetchall()
        if version == 0 and not self._connection.execute("SELECT 1 FROM sqlite_schema").fetchall():
            self._connection.executescript(f"BEGIN; {SCHEMA}")
            self._connection.execute("INSERT INTO progress (only_row, topic_id) VALUES (1, ?)", (topic_id,))
            self._connection.execute("COMMIT")
        elif version != VERSION:
            raise LedgerDamaged(f"it has version {version}, this release writes {VERSION}")
        found = self._connection.execute("SELECT topic_id, position, ledger_end FROM progress").fetchall()
        if len(found) != 1:
            raise LedgerDamaged("it does not say how far it goes")
        ((of, position, end),) = found
        if of != topic_id:
            raise LedgerDamaged(f"it is of the log {of}, ours is {topic_id}")
        position_of(position)
        ((last,),) = self._connection.execute("SELECT coalesce(max(ledger_offset), 0) FROM completion").fetchall()
        if last > end or (last < end and self.progress().pruned_to < end):
            raise LedgerDamaged(f"its last completion is {last}, it should be {end}")

    def _newest_before(self, recorded_before_us: int, pruned_to: int, end: int) -> int:
        """Times rise with ledger offsets: a search by halves."""
        low, high = pruned_to + 1, end + 1
        while low < high:
            middle = (low + high) // 2
            if self._at(middle)[1].recorded_us < recorded_before_us:
                low = middle + 1
            else:
                high = middle
        return low - 1

    def _at(self, ledger_offset: int) -> Row:
        row = self._connection.execute(READ, (ledger_offset - 1, ledger_offset, 1)).fetchone()
        if row is None:
            raise LedgerDamaged(f"the completion at ledger offset {ledger_offset} is not there")
        return restored(row)

    @contextmanager
    def _transaction(self) -> Iterator[Callable[..., sqlite3.Cursor]]:
        if _identity(self._path) != self._identity:  # SQLite would go on writing to a file without a name
            raise LedgerDamaged("its file was deleted or replaced")
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield self._connection.execute
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file has that name; None if there is none. A file that is open keeps its number from others."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreUnavailable(f"the ledger's file: {error}") from None
    return found.st_dev, found.st_ino


def position_of(raw: bytes | None) -> Position | None:
    """The position as it is stored. Raises LedgerDamaged."""
    try:
        return None if raw is None else decode_position(raw)
    except FormatUnknown as error:
        raise LedgerDamaged(f"its position cannot be read: {error.detail}") from None


def _check_forward(before: Position | None, position: Position) -> None:
    if before is not None and position.offset <= before.offset:
        raise InvariantBroken(
            f"the ledger covers the log up to offset {before.offset}, and not {position.offset} again"
        )


def named(error: sqlite3.Error) -> Exception:
    """Our error for one of SQLite's: a refusal of the disk or of a lock, or else damage."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)
    if code & 0xFF in _REFUSALS and code not in _UNREADABLE:  # the low byte: the kind
        return StoreUnavailable(f"the ledger's file: {error}")
    return LedgerDamaged(str(error))


@contextmanager
def _errors_named() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise named(error) from None
