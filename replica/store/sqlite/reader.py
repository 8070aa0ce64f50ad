"""The completion reader on an embedded ledger: a connection that cannot write, on a thread of its own."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from replica.notary.codes import Code
from replica.notary.errors import StoreUnavailable
from replica.store.interface import Row
from replica.store.one_connection import ATTEMPTS_MAX, PAGE_ROWS, SCAN_DETAIL_BYTES, SCAN_ROWS, scan_end
from replica.store.reader import PAGE_DETAIL_BYTES, WINDOW_DETAIL_BYTES, Scan, check_dense
from replica.store.sqlite.file import READ, named
from replica.store.sqlite.tables import LedgerDamaged, connect, restored

_T = TypeVar("_T")


class SqliteReader:
    """See CompletionReader. A damaged row is an error of its kind, never an answer: the replica makes the ledger anew,
    and the next question finds the new file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._turn = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ledger-reader")
        self._connection: sqlite3.Connection | None = None

    async def read(self, after: int, until: int, bytes_max: int = PAGE_DETAIL_BYTES) -> Sequence[Row]:
        """See CompletionReader."""
        until = min(until, after + PAGE_ROWS)
        return await self._ask(lambda of: check_dense(_fitting(_kept(of, after, until), bytes_max), after, until))

    async def first_at(self, log_offset: int, ledger_end: int) -> int:
        """See CompletionReader."""
        return await self._ask(lambda of: _first_at(of, log_offset, ledger_end))

    async def find_attempts(self, state: bytes, tx_id: bytes, after: int, until: int) -> Scan:
        """See CompletionReader."""
        return await self._ask(lambda of: _find_attempts(of, state, tx_id, after, min(until, after + SCAN_ROWS)))

    async def reset(self) -> None:
        """See CompletionReader."""
        async with self._turn:
            await self._on_thread(self._hang_up)

    async def close(self) -> None:
        """See CompletionReader."""
        async with self._turn:
            self._thread.submit(self._hang_up)
            self._thread.shutdown(wait=False)
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="ledger-reader")

    async def _ask(self, question: Callable[[sqlite3.Connection], _T]) -> _T:
        async with self._turn:
            return await self._on_thread(lambda: self._answer(question))

    async def _on_thread(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _answer(self, question: Callable[[sqlite3.Connection], _T]) -> _T:
        """On the thread. One transaction, so that the bound and the rows belong together."""
        try:
            if self._connection is None:
                self._connection = connect(self._path, writes=False)
            self._connection.execute("BEGIN")
            answer = question(self._connection)
            self._connection.execute("COMMIT")
            return answer
        except (sqlite3.Error, LedgerDamaged) as error:
            self._hang_up()
            found = named(error) if isinstance(error, sqlite3.Error) else error
            raise StoreUnavailable(f"the ledger could not be read: {found}") from None
        except BaseException:
            self._hang_up()
            raise

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _kept(connection: sqlite3.Connection, after: int, until: int) -> list[Row]:
    rows = connection.execute(READ, (max(after, _pruned_to(connection)), until, max(0, until - after))).fetchall()
    return [restored(row) for row in rows]


def _pruned_to(connection: sqlite3.Connection) -> int:
    ((pruned_to,),) = connection.execute("SELECT pruned_to FROM progress").fetchall()
    return int(pruned_to)


def _fitting(rows: Sequence[Row], bytes_max: int) -> list[Row]:
    """The first rows, as many as have less than `bytes_max` bytes of detail before the last one."""
    taken, before = [], 0
    for row in rows:
        if before >= bytes_max:
            break
        taken.append(row)
        before += len(row[1].detail)
    return taken


def _first_at(connection: sqlite3.Connection, log_offset: int, ledger_end: int) -> int:
    """Log offsets rise with ledger offsets: a search by halves."""
    low = _pruned_to(connection) + 1
    high = max(low, ledger_end + 1)
    while low < high:
        middle = (low + high) // 2
        rows = connection.execute(READ, (middle - 1, middle, 1)).fetchall()
        if not rows:
            raise StoreUnavailable("completions are missing, or are being pruned")
        if restored(rows[0])[1].log_offset < log_offset:
            low = middle + 1
        else:
            high = middle
    return low


def _find_attempts(connection: sqlite3.Connection, state: bytes, tx_id: bytes, after: int, until: int) -> Scan:
    searched = _fitting(_kept(connection, after, until), SCAN_DETAIL_BYTES)
    searched_to = scan_end(searched[-1][0] if searched else None)
    found = [row for row in searched if _belongs(row, state, tx_id)]
    fitting = _fitting(found, WINDOW_DETAIL_BYTES)[:ATTEMPTS_MAX]
    return Scan(fitting, searched_to if len(fitting) == len(found) else fitting[-1][0])


def _belongs(row: Row, state: bytes, tx_id: bytes) -> bool:
    _, completion = row
    return completion.tx_id == tx_id or (completion.outcome == Code.STATE_CONFLICT.name and state in completion.detail)
