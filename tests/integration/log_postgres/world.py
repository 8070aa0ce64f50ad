"""A request log on a real Postgres: made, looked at and harmed as its owner may."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import psycopg

from replica.log.interface import RequestLog
from replica.log.open import open_log
from replica.log.postgres.install import install
from replica.log.postgres.log import PostgresLog
from replica.log.postgres.settings import PostgresLogSettings
from replica.store.postgres.looking import to_use

PARTITION_RECORDS = 1_000  # small, so that the tests come to the end of one


def settings_for(dsn: str, **changes: object) -> PostgresLogSettings:
    return PostgresLogSettings.model_validate({"conninfo": dsn, "single_server": True, **changes})


@asynccontextmanager
async def opened(dsn: str, **changes: object) -> AsyncIterator[PostgresLog]:
    log = PostgresLog(settings_for(dsn, **changes))
    try:
        yield log
    finally:
        await log.close()


@asynccontextmanager
async def looking(dsn: str) -> AsyncIterator[psycopg.AsyncConnection[tuple[object, ...]]]:
    """An ordinary connection, to look at the tables or to do harm."""
    async with await psycopg.AsyncConnection.connect(to_use(dsn), autocommit=True) as connection:
        yield connection


async def run(dsn: str, statement: str, values: Sequence[object] | None = None) -> list[tuple[object, ...]]:
    async with looking(dsn) as connection:
        cursor = await connection.execute(statement.encode(), values)
        return await cursor.fetchall() if cursor.description else []


class PostgresUnderTest:
    """A log on Postgres as the contract suite sees it."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    def log(self) -> RequestLog:
        return open_log(settings_for(self._dsn))

    async def put(self, *values: bytes | None) -> None:
        for value in values:
            await run(
                self._dsn,
                "WITH head AS (UPDATE notary_log.log_head SET end_offset = end_offset + 1"
                " RETURNING end_offset - 1 AS o)"
                " INSERT INTO notary_log.log_batch (first_offset, records) SELECT o, ARRAY[%s::bytea] FROM head",
                [value],
            )

    async def cut_off(self, first_offset: int) -> None:
        await run(self._dsn, "DELETE FROM notary_log.log_batch WHERE first_offset < %s", [first_offset])

    async def recreate(self) -> None:
        await run(self._dsn, "DROP SCHEMA notary_log CASCADE")
        await install(self._dsn, partition_records=PARTITION_RECORDS)
