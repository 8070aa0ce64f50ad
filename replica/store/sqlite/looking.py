"""What tools read from the embedded ledgers of a machine, over connections that cannot write.

A replica may write its file meanwhile, or make it anew. Each question reads one state of one file: that which covers
most of the log. A replica that lags, or has just begun a new file, has fewer completions than its peers, never others.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path

from replica.notary.errors import Code, ConfigError, StoreMismatch, StoreUnavailable
from replica.notary.formats import Formats
from replica.notary.position import BEGIN
from replica.store.bulletin import PastActivation, Pause
from replica.store.facts import PAGE_ROWS, Export, StoreStatus
from replica.store.reader import Row
from replica.store.sqlite.file import READ, named, position_of
from replica.store.sqlite.tables import VERSION, LedgerDamaged, connect, restored

RELEASED = "released the lease"
_PROGRESS = "SELECT topic_id, position, ledger_end, pruned_to FROM progress"
_BEGUN = "SELECT epoch, replica, stamp_us FROM activation ORDER BY epoch DESC LIMIT ?"


def read_status(files: Sequence[Path]) -> StoreStatus:
    """How far the ledger is. Raises StoreUnavailable, and StoreMismatch where this machine has none."""
    with _opened(files) as connection:
        topic_id, position, ledger_end, _ = _progress(connection)
        newest = next((one for one in _history(connection, 2) if one.replica), None)
        return StoreStatus(
            f"sqlite:{topic_id}",
            topic_id,
            0 if newest is None else newest.epoch,
            None if newest is None else newest.replica,
            None if newest is None else newest.granted_at,
            _offset(position),
            ledger_end,
            0,  # nothing is accepted before it is in the log
            VERSION,
        )


@contextmanager
def export_completions(files: Sequence[Path]) -> Iterator[Export]:
    """See Ledgers.export: what one ledger has when the export begins."""
    with _opened(files) as connection:
        topic_id, position, ledger_end, pruned_to = _progress(connection)
        rows = _rows(connection, pruned_to, ledger_end)
        age_us = _age_us(connection, pruned_to)
        yield Export(topic_id, _offset(position), ledger_end, age_us, rows, pruned_to)


class LedgerBoard:
    """See Board. Nothing is written: the log says who led, and nobody can pause a lease."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files = files

    async def paused(self) -> Pause | None:
        """See Board: never."""
        return None

    async def pause(self, reason: str) -> Pause | None:
        """Raises ConfigError."""
        raise _without_database("pause")

    async def resume(self) -> Pause | None:
        """See Board: there was no pause."""
        return None

    async def history(self, limit: int) -> list[PastActivation]:
        """See Board. Moments are the highest stamps of the log before them; only an ordered end has a reason."""
        return await asyncio.to_thread(self._read_history, limit)

    def _read_history(self, limit: int) -> list[PastActivation]:
        try:
            with _opened(self._files) as connection:
                return [one for one in _history(connection, 2 * limit) if one.replica][:limit]
        except StoreMismatch:
            return []

    async def formats(self) -> Formats:
        """See Board: no more than what is in the log. A claim to a lease names format and rules 2."""
        return Formats(2, 2)

    async def raise_formats(self, formats: Formats) -> Formats:
        """Raises ConfigError."""
        raise _without_database("format raise")

    async def end_epoch(self, epoch: int, replica: str, reason: str, age_s: float) -> None:
        """Nothing: the reason is in the replica's own log lines."""


@asynccontextmanager
async def ledger_board(files: Sequence[Path]) -> AsyncIterator[LedgerBoard]:
    """The board, as long as the context lasts."""
    yield LedgerBoard(files)


def _without_database(command: str) -> ConfigError:
    return ConfigError(f"notary {command} needs a database that the replicas share", Code.NOT_POSSIBLE_NOW)


@contextmanager
def _opened(files: Sequence[Path]) -> Iterator[sqlite3.Connection]:
    """The file that covers most of the log, in one transaction. One that is damaged is made anew by its replica."""
    found = [file for file in files if os.path.exists(file)]
    if not found:
        raise StoreMismatch("no replica of this machine has a ledger yet")
    problem: Exception | None = None
    readable: list[tuple[int, sqlite3.Connection]] = []
    with ExitStack() as stack:
        for file in found:
            try:
                connection = stack.enter_context(closing(connect(file, writes=False)))
                connection.execute("BEGIN")
                readable.append((_offset(_progress(connection)[1]), connection))
            except (sqlite3.Error, LedgerDamaged) as error:
                problem = error
        if problem is not None and not readable:
            raise _unreadable(problem)
        try:
            yield max(readable, key=itemgetter(0))[1]
        except (sqlite3.Error, LedgerDamaged) as error:
            raise _unreadable(error) from None


def _unreadable(error: Exception) -> StoreUnavailable:
    return StoreUnavailable(
        f"the ledger could not be read: {named(error) if isinstance(error, sqlite3.Error) else error}"
    )


def _progress(connection: sqlite3.Connection) -> tuple[str, bytes | None, int, int]:
    found = connection.execute(_PROGRESS).fetchone()
    if found is None:
        raise LedgerDamaged("it does not say how far it goes")
    topic_id, position, ledger_end, pruned_to = found
    return topic_id, position, ledger_end, pruned_to


def _offset(position: bytes | None) -> int:
    found = position_of(position)
    return BEGIN if found is None else found.offset


def _history(connection: sqlite3.Connection, limit: int) -> list[PastActivation]:
    """Activations and releases, newest first. Each is over where the next one begins."""
    first_us = next((row[1].recorded_us for row in _rows(connection, 0, 1)), 0)
    found: list[PastActivation] = []
    successor: tuple[str, datetime] | None = None
    for epoch, replica, stamp_us in connection.execute(_BEGUN, (limit,)):
        began = datetime.fromtimestamp(max(stamp_us, first_us) / 1e6, UTC)
        over_by, over_at = successor or (None, None)
        if over_by == "":  # its own release
            found.append(PastActivation(epoch, replica, began, over_at, over_at, RELEASED, None, None))
        else:
            found.append(PastActivation(epoch, replica, began, over_at, None, None, over_at, over_by))
        successor = replica, began
    return found


def _age_us(connection: sqlite3.Connection, pruned_to: int) -> int | None:
    """Microseconds since the first completion; None where there is none. Where that is pruned: since the epoch of the
    clock, which is longer than any period."""
    first_us = next((row[1].recorded_us for row in _rows(connection, 0, 1)), None)
    if first_us is None and not pruned_to:
        return None
    return time.time_ns() // 1_000 - (0 if pruned_to or first_us is None else first_us)


def _rows(connection: sqlite3.Connection, after: int, until: int) -> Iterator[Row]:
    """The completions after `after` up to `until`, page by page; those that are pruned are left out."""
    while after < until:
        page = connection.execute(READ, (after, until, PAGE_ROWS)).fetchall()
        yield from map(restored, page)
        if not page:
            return
        after = page[-1][0]
