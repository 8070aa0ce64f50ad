"""Connections to Oracle for people and tools: never the lock session, and never for long."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress

import oracledb

from replica.notary.errors import StoreUnavailable
from replica.store.oracle.errors import translate

CONNECT_MAX_S = 5.0
CALL_MAX_MS = 60_000  # these connections hold no lock, so a statement of theirs may be cancelled
GRANTED, BUSY = 0, 1  # results of DBMS_LOCK.REQUEST
REQUEST_LOCK = """/* notary.migration_lock */
BEGIN
    :result := SYS.DBMS_LOCK.REQUEST(id => :id, lockmode => 6, timeout => :seconds, release_on_commit => FALSE);
END;"""


@asynccontextmanager
async def open_cursor(name: str, login: Mapping[str, str]) -> AsyncIterator[oracledb.AsyncCursor]:
    """A cursor on a connection of its own."""
    with _connecting(name):
        connection = await oracledb.connect_async(**login, tcp_connect_timeout=CONNECT_MAX_S)
    try:
        connection.call_timeout = CALL_MAX_MS
        with errors_named(name), connection.cursor() as cursor:
            yield cursor
    finally:
        with suppress(oracledb.Error):
            await connection.close()


@contextmanager
def plain_cursor(name: str, login: Mapping[str, str]) -> Iterator[oracledb.Cursor]:
    """A cursor on a connection of its own, without asyncio. Uncommitted changes are rolled back."""
    with _connecting(name):
        connection = oracledb.connect(**login, tcp_connect_timeout=CONNECT_MAX_S)
    with connection:
        connection.call_timeout = CALL_MAX_MS
        with errors_named(name), connection.cursor() as cursor:
            yield cursor


@contextmanager
def errors_named(name: str) -> Iterator[None]:
    """Raises our error for one of the driver's; `name` is the statement's."""
    try:
        yield
    except oracledb.Error as error:
        raise translate(name, error) from None


@contextmanager
def _connecting(name: str) -> Iterator[None]:
    try:
        yield
    except oracledb.Error as error:
        raise StoreUnavailable(f"{name}: the database cannot be reached: {str(error).strip()}") from None
