"""The completion reader on Postgres: one read-only connection, made when it is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
from psycopg import conninfo as libpq

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
from replica.store.postgres.looking import to_look
from replica.store.postgres.store import completion_of, named_statement
from replica.store.reader import PAGE_DETAIL_BYTES, WINDOW_DETAIL_BYTES, Scan, check_dense

_STATEMENT_MAX_MS = 4_000
_OPTIONS = f"-c default_transaction_read_only=on -c statement_timeout={_STATEMENT_MAX_MS} -c jit=off"

Connection = psycopg.AsyncConnection[tuple[Any, ...]]


class PostgresReader(OneConnectionReader):
    """See CompletionReader."""

    errors = (psycopg.Error, OSError)

    def __init__(self, conninfo: str) -> None:
        super().__init__()
        given: dict[str, Any] = dict(libpq.conninfo_to_dict(to_look(conninfo)))
        self._parameters = given | {
            "application_name": "notary-feed",
            "options": f"{given['options']} {_OPTIONS}",
            "target_session_attrs": "primary",  # a standby may lack completions that are committed
            "connect_timeout": CONNECT_MAX_S,
        }
        self._connection: Connection | None = None

    async def read(self, after: int, until: int, bytes_max: int = PAGE_DETAIL_BYTES) -> Sequence[Row]:
        """See CompletionReader."""
        until = min(until, after + PAGE_ROWS)
        values = {"after": after, "until": until, "bytes_max": bytes_max}
        return check_dense(_completions(await self._ask("read_completions", values)), after, until)

    async def first_at(self, log_offset: int, ledger_end: int) -> int:
        """See CompletionReader."""
        rows = await self._ask("find_log_offset", {"log_offset": log_offset, "ledger_end": ledger_end})
        if not rows:
            raise StoreUnavailable("completions are missing, or are being pruned")
        return int(rows[0][0])

    async def find_attempts(self, state: bytes, tx_id: bytes, after: int, until: int) -> Scan:
        """See CompletionReader."""
        bounds = {"after": after, "until": min(until, after + SCAN_ROWS)}
        ((end,),) = await self._ask("scan_end", bounds | {"bytes_max": SCAN_DETAIL_BYTES})
        bounds |= {"until": scan_end(end), "bytes_max": WINDOW_DETAIL_BYTES, "row_count": ATTEMPTS_MAX}
        rows = await self._ask("find_attempts", bounds | {"state": state, "tx_id": tx_id})
        return scan_of(_completions([row[:-1] for row in rows]), rows[0][-1] if rows else 0, bounds["until"])

    async def _rows(self, name: str, values: Mapping[str, object]) -> list[tuple[Any, ...]]:
        if self._connection is None:
            self._connection = await psycopg.AsyncConnection.connect(**self._parameters, autocommit=True)
        cursor = await self._connection.execute(named_statement(name), values, prepare=True, binary=True)
        return await cursor.fetchall()

    async def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


def _completions(rows: list[tuple[Any, ...]]) -> list[Row]:
    return [(row[0], completion_of(row)) for row in rows]
