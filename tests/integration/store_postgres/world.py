"""A participant store on a real Postgres: databases with the schema, lock sessions on them, a look at the tables."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
from psycopg.conninfo import conninfo_to_dict

from ha.clock import SystemClock
from ha.lock.ids import Counter, lock_id
from ha.lock.postgres import PostgresLockSession
from ha.settings import ElectionSettings
from replica.store.postgres.looking import to_use

MIGRATION_LOCK = lock_id("test", Counter.NODE_MIGRATIONS)


@asynccontextmanager
async def sessions(dsn: str) -> AsyncIterator[list[PostgresLockSession]]:
    """A list that lock sessions are added to; closed at the end."""
    opened: list[PostgresLockSession] = []
    try:
        yield opened
    finally:
        for session in opened:
            await session.close()


async def open_session(dsn: str, opened: list[PostgresLockSession], **settings: float) -> PostgresLockSession:
    scope = conninfo_to_dict(dsn)["dbname"]
    session = PostgresLockSession(
        dsn, scope=str(scope), name="r1", settings=ElectionSettings(**settings), clock=SystemClock()
    )
    await session.open()
    opened.append(session)
    return session


@asynccontextmanager
async def looking(dsn: str) -> AsyncIterator[psycopg.AsyncConnection[tuple[object, ...]]]:
    """An ordinary connection, to look at the tables or to do harm."""
    async with await psycopg.AsyncConnection.connect(to_use(dsn), autocommit=True) as connection:
        yield connection


async def rows(dsn: str, query: str) -> list[tuple[object, ...]]:
    async with looking(dsn) as connection:
        return await (await connection.execute(query.encode())).fetchall()
