"""The completion reader on Oracle: one connection, made when it is needed.

Use a user that may only read (database.reader_user): Oracle has no read-only session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import oracledb

from replica.notary.errors import StoreUnavailable
from replica.store.interface import Row
from replica.store.one_connection import (
    ATTEMPTS_MAX,
    CONNECT_MAX_S,
    PAGE_ROWS,
    SCAN_DETAIL_BYTES,
    SCAN_ROWS,
    OneConnectionReader,
    scan_end,
    scan_of,
)
from replica.store.oracle.login import parse_oracle
from replica.store.oracle.store import completion_of, named_statement
from replica.store.reader import PAGE_DETAIL_BYTES, WINDOW_DETAIL_BYTES, Scan, check_dense

_CLOSE_MAX_S = 1.0


class OracleReader(OneConnectionReader):
    """See CompletionReader."""

    errors = (oracledb.Error, OSError)

    def __init__(self, address: str) -> None:
        super().__init__()
        self._login = parse_oracle(address)
        self._schema = self._login.pop("schema", None)
        self._connection: oracledb.AsyncConnection | None = None

    async def read(self, after: int, until: int, bytes_max: int = PAGE_DETAIL_BYTES) -> Sequence[Row]:
        """See CompletionReader."""
        until = min(until, after + PAGE_ROWS)
        values = {"after_offset": after, "until_offset": until, "bytes_max": bytes_max}
        rows = await self._ask("read_completions", values)
        return check_dense([(row[0], completion_of(row)) for row in rows], after, until)

    async def first_at(self, log_offset: int, ledger_end: int) -> int:
        """See CompletionReader. A binary search: above the bound ledger offsets are dense, and log offsets rise."""
        ((pruned_to,),) = await self._ask("pruned_to", {})
        low, high = int(pruned_to) + 1, max(int(pruned_to), ledger_end) + 1
        while low < high:
            middle = (low + high) // 2
            rows = await self._ask("log_offset_at", {"ledger_offset": middle})
            if not rows:
                raise StoreUnavailable("completions are missing, or are being pruned")
            low, high = (middle + 1, high) if rows[0][0] < log_offset else (low, middle)
        return low

    async def find_attempts(self, state: bytes, tx_id: bytes, after: int, until: int) -> Scan:
        """See CompletionReader."""
        bounds = {"after_offset": after, "until_offset": min(until, after + SCAN_ROWS)}
        ((end,),) = await self._ask("scan_end", bounds | {"bytes_max": SCAN_DETAIL_BYTES})
        bounds |= {"until_offset": scan_end(end), "bytes_max": WINDOW_DETAIL_BYTES, "row_count": ATTEMPTS_MAX}
        rows = await self._ask("find_attempts", bounds | {"state": state, "tx_id": tx_id})
        found = [(row[0], completion_of(row[:-1])) for row in rows]
        return scan_of(found, rows[0][-1] if rows else 0, bounds["until_offset"])

    async def _rows(self, name: str, values: Mapping[str, object]) -> list[tuple[Any, ...]]:
        connection = self._connection or await self._connect()
        with connection.cursor() as cursor:
            cursor.prefetchrows = cursor.arraysize = PAGE_ROWS
            await cursor.execute(named_statement(name), dict(values), fetch_lobs=False)
            rows: list[tuple[Any, ...]] = await cursor.fetchall()
            return rows

    async def _connect(self) -> oracledb.AsyncConnection:
        connection: oracledb.AsyncConnection = await oracledb.connect_async(
            **self._login, tcp_connect_timeout=CONNECT_MAX_S
        )
        self._connection = connection
        connection.module = "notary-feed"
        if self._schema is not None:
            connection.current_schema = self._schema
        return connection

    async def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(oracledb.Error, OSError):
                async with asyncio.timeout(_CLOSE_MAX_S):
                    await connection.close()
