"""The completion reader on Postgres: one read-only connection, made when it is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
from psycopg import conninfo as libpq

from replica.notary.errors import StoreUnavailable
from replica.store.postgres import completion_of, named_statement
from replica.store.reader import Row, Scan, check_dense

PAGE_ROWS = 500
PAGE_DETAIL_BYTES = 4_000_000
SCAN_ROWS = 20_000
ATTEMPTS_MAX = 100
_CONNECT_MAX_S = 3
_STATEMENT_MAX_MS = 4_000
_ANSWER_MAX_S = 5.0
_OPTIONS = f"-c default_transaction_read_only=on -c statement_timeout={_STATEMENT_MAX_MS} -c jit=off"

Connection = psycopg.AsyncConnection[tuple[Any, ...]]


class PostgresReader:
    """See CompletionReader."""

    def __init__(self, conninfo: str) -> None:
        given: dict[str, Any] = dict(libpq.conninfo_to_dict(conninfo))
        self._parameters = given | {
            "application_name": "notary-feed",
            "options": f"{given.get('options') or ''} {_OPTIONS}".strip(),
            "target_session_attrs": "primary",  # a standby may lag behind what the active was told is committed
            "connect_timeout": _CONNECT_MAX_S,
        }
        self._connection: Connection | None = None
        self._turn = asyncio.Lock()

    async def read(self, after: int, until: int) -> Sequence[Row]:
        """See CompletionReader."""
        until = min(until, after + PAGE_ROWS)
        values = {"after": after, "until": until, "bytes_max": PAGE_DETAIL_BYTES}
        return check_dense(_completions(await self._ask("read_completions", values)), after, until)

    async def first_at(self, log_offset: int, ledger_end: int) -> int:
        """See CompletionReader."""
        rows = await self._ask("find_log_offset", {"log_offset": log_offset, "ledger_end": ledger_end})
        if not rows:
            raise StoreUnavailable("completions are missing, or are being pruned")
        return int(rows[0][0])

    async def find_attempts(self, state: bytes, tx_id: bytes, after: int, until: int) -> Scan:
        """See CompletionReader."""
        until = min(until, after + SCAN_ROWS)
        values = {"state": state, "tx_id": tx_id, "after": after, "until": until, "limit": ATTEMPTS_MAX}
        rows = _completions(await self._ask("find_attempts", values))
        return Scan(rows, rows[-1][0] if len(rows) == ATTEMPTS_MAX else until)

    async def reset(self) -> None:
        """See CompletionReader."""
        async with self._turn:
            await self._hang_up()

    async def close(self) -> None:
        """See CompletionReader."""
        await self.reset()

    async def _ask(self, name: str, values: Mapping[str, object]) -> list[tuple[Any, ...]]:
        async with self._turn:
            try:
                async with asyncio.timeout(_ANSWER_MAX_S):
                    if self._connection is None:
                        self._connection = await psycopg.AsyncConnection.connect(**self._parameters, autocommit=True)
                    cursor = await self._connection.execute(named_statement(name), values, prepare=True, binary=True)
                    return await cursor.fetchall()
            except (psycopg.Error, OSError) as error:  # a TimeoutError is an OSError
                await self._hang_up()
                raise StoreUnavailable(f"{name}: {str(error).strip() or 'no answer in time'}") from None
            except BaseException:
                await self._hang_up()
                raise

    async def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()


def _completions(rows: list[tuple[Any, ...]]) -> list[Row]:
    return [(row[0], completion_of(row)) for row in rows]
