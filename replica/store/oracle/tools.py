"""The participant database on Oracle for people and tools: migrations, status, completions for an audit.

Each operation has a connection of its own; nothing here touches the lock session.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, timedelta
from typing import Any

import oracledb

from replica.notary.errors import StoreMismatch, StoreUnavailable
from replica.notary.position import Position, decode_position, encode_position
from replica.notary.salvage import Salvage, bound_name, bound_topic_id, salvages_named
from replica.store.adopt import position_in
from replica.store.facts import PAGE_ROWS, Export, PublishedState, StoreStatus
from replica.store.interface import Completion
from replica.store.oracle.store import completion_of, error_number, named_statement, newest_version, translate
from replica.store.schema import LOCK_WAIT_S, Migration, check_not_newer, read_migrations

CONNECT_MAX_S = 5.0
CHUNK_ROWS = 5_000  # completions deleted in one transaction
CALL_MAX_MS = 60_000  # these connections hold no lock, so a statement of theirs may be cancelled
GRANTED, BUSY = 0, 1  # results of DBMS_LOCK.REQUEST
_EXISTS_ALREADY = {955, 1430, 2260, 2261, 2275}  # a table or view, a column, a key, a constraint
_NO_TABLE = 942
_LOCK = """/* notary.migration_lock */
BEGIN
    :result := SYS.DBMS_LOCK.REQUEST(id => :id, lockmode => 6, timeout => :seconds, release_on_commit => FALSE);
END;"""
_VERSIONS = """/* notary.schema_version */
CREATE TABLE schema_version (
    version         NUMBER(10)         NOT NULL,
    name            VARCHAR2(255 BYTE) NOT NULL,
    usable_from     NUMBER(10)         NOT NULL,
    statements_done NUMBER(10)         NOT NULL,
    applied_at      TIMESTAMP(6),
    CONSTRAINT schema_version_pk PRIMARY KEY (version)
)"""
_KNOWN = "SELECT version, usable_from, statements_done, applied_at FROM schema_version ORDER BY version"
_BEGIN = """INSERT INTO schema_version (version, name, usable_from, statements_done)
VALUES (:version, :name, :usable_from, 0)"""
_STEP = "UPDATE schema_version SET statements_done = :done WHERE version = :version"
_END = "UPDATE schema_version SET applied_at = SYS_EXTRACT_UTC(SYSTIMESTAMP) WHERE version = :version"


async def migrate(login: Mapping[str, str], lock_id: int) -> list[str]:
    """Apply the missing migrations, and return their names. `login`: user, password and dsn.

    Oracle commits with every change of a schema, so a migration is not atomic. Each finished statement is recorded, and
    the next call continues after it. Raises StoreMismatch when the database is too new for this release, and
    StoreUnavailable when it cannot be reached or another migration does not end.
    """
    async with open_cursor("migrate", login) as cursor:
        result = cursor.var(int)
        await cursor.execute(_LOCK, {"id": lock_id, "seconds": LOCK_WAIT_S, "result": result})
        if result.getvalue() != GRANTED:
            what = "another migration does not end" if result.getvalue() == BUSY else "the migration lock was refused"
            raise StoreUnavailable(f"{what}: DBMS_LOCK answered {result.getvalue()}")
        known = await _known_versions(cursor)
        check_not_newer(max(known, default=0), max((row[1] for row in known.values()), default=0), newest_version())
        missing = [m for m in read_migrations("oracle") if m.version not in known or known[m.version][3] is None]
        for migration in missing:
            row = known.get(migration.version)
            await _apply(cursor, migration, None if row is None else int(row[2]))
    return [migration.name for migration in missing]


def statements_of(migration: Migration) -> list[str]:
    """The statements of a migration: a line with a slash ends each."""
    texts = re.split(r"^/$", migration.text.decode(), flags=re.MULTILINE)
    without_comments = ("\n".join(li for li in text.splitlines() if not li.startswith("--")).strip() for text in texts)
    return [text for text in without_comments if text]


async def read_status(login: Mapping[str, str]) -> StoreStatus:
    """The present status. Raises StoreUnavailable; StoreMismatch when there is no schema, or no right to read it."""
    async with open_cursor("status", login) as cursor:
        await cursor.execute(named_statement("status"))
        row = await cursor.fetchone()
    if row is None:
        raise StoreMismatch("the database has lost its participant row; restore it from a backup")
    ledger_id, bound, epoch, replica, granted_at, *numbers = row
    published_offset, ledger_end, in_flight, schema_version = map(int, numbers)
    return StoreStatus(
        ledger_id,
        bound_topic_id(bound),
        int(epoch),
        replica,
        None if granted_at is None else granted_at.replace(tzinfo=UTC),
        published_offset,
        ledger_end,
        in_flight,
        schema_version,
        salvages_named(bound),
    )


@contextmanager
def export_completions(login: Mapping[str, str]) -> Iterator[Export]:
    """All that is published, while the context lasts. Raises StoreUnavailable and StoreMismatch, the rows as well."""
    with _plain_cursor("export", login) as cursor:
        cursor.execute(named_statement("export_status"))
        row = cursor.fetchone()
        if row is None:
            raise StoreMismatch("the database has no participant row")
        topic_id, published_offset, ledger_end, found, first, now = row
        age_us = None if first is None else (now - first) // timedelta(microseconds=1)
        pruned_to = int(found)
        rows = _rows(cursor, int(ledger_end), pruned_to)
        yield Export(
            bound_topic_id(topic_id),
            int(published_offset),
            int(ledger_end),
            age_us,
            rows,
            pruned_to,
            salvages_named(topic_id),
        )


def delete_pruned(login: Mapping[str, str], tell: Callable[[int], None]) -> int:
    """Delete completions below the bound that the active has moved; see replica.store.postgres.prune."""
    deleted = 0
    with _plain_cursor("delete_pruned", login) as cursor:
        while True:
            cursor.execute(named_statement("oldest_kept"))
            oldest, pruned_to = cursor.fetchone() or (None, 0)
            if oldest is None or oldest > pruned_to:
                return deleted
            up_to = min(int(pruned_to), int(oldest) + CHUNK_ROWS - 1)
            cursor.execute(named_statement("forget_accepted"), {"up_to": up_to})
            cursor.execute(named_statement("delete_completions"), {"up_to": up_to})
            cursor.connection.commit()
            deleted += up_to - int(oldest) + 1
            tell(deleted)


def export_range(login: Mapping[str, str], after: int, until: int) -> Iterator[tuple[int, Completion]]:
    """See replica.store.postgres.export."""
    with _plain_cursor("export", login) as cursor:
        yield from _rows(cursor, until, after)


def published_state(login: Mapping[str, str]) -> PublishedState:
    """See replica.store.postgres.export."""
    with export_completions(login) as export:
        ((position, ledger_end, pruned_to, _),) = run_once(login, "published", {})
        return PublishedState(export.topic_id, position, int(ledger_end), int(pruned_to))


def _rows(cursor: oracledb.Cursor, ledger_end: int, after: int) -> Iterator[tuple[int, Completion]]:
    """Rows never change once they are published, so pages fit together."""
    cursor.prefetchrows = cursor.arraysize = PAGE_ROWS
    while True:
        bounds = {"after_offset": after, "until_offset": ledger_end, "row_count": PAGE_ROWS}
        with _errors_named("export"):
            cursor.execute(named_statement("export_completions"), bounds, fetch_lobs=False)
            page = cursor.fetchall()
        for row in page:
            after = row[0]
            yield after, completion_of(row)
        if len(page) < PAGE_ROWS:
            return


def run_once(login: Mapping[str, str], name: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """One statement on a connection of its own, committed; the rows of a query. Raises as `translate` does."""
    with _plain_cursor(name, login) as cursor:
        cursor.execute(named_statement(name), dict(values), fetch_lobs=False)
        rows = cursor.fetchall() if cursor.description else []
        cursor.connection.commit()
        return rows


def adopt_topic(
    login: Mapping[str, str],
    lock_id: int,
    topic_id: str,
    check: Callable[[Position], None],
    salvage: Salvage | None = None,
) -> Position | None:
    """See replica.store.postgres.adopt. The lock goes with the connection."""
    with _plain_cursor("adopt_topic", login) as cursor:
        result = cursor.var(int)
        cursor.execute(_LOCK, {"id": lock_id, "seconds": 0, "result": result})
        if result.getvalue() != GRANTED:
            raise StoreMismatch("a replica is active: stop all replicas before their topic is changed")
        cursor.execute(named_statement("adopted"), fetch_lobs=False)
        row = cursor.fetchone()
        if row is None:
            raise StoreMismatch("the database has lost its participant row; restore it from a backup")
        position = None
        if row[1] is not None:
            position = position_in(decode_position(row[1]), topic_id, salvage)
            check(position)
        encoded = None if position is None else encode_position(position)
        bound = bound_name(row[0], topic_id, None if salvage is None else salvage.digest)
        cursor.execute(named_statement("adopt_topic"), {"topic_id": bound, "published_position": encoded})
        cursor.connection.commit()
        return position


async def _known_versions(cursor: oracledb.AsyncCursor) -> dict[int, tuple[Any, ...]]:
    """The rows of schema_version, by version; makes the table the first time."""
    try:
        await cursor.execute(_KNOWN)
    except oracledb.DatabaseError as error:
        if error_number(error) != _NO_TABLE:
            raise
        await cursor.execute(_VERSIONS)
        return {}
    return {int(row[0]): row for row in await cursor.fetchall()}


async def _apply(cursor: oracledb.AsyncCursor, migration: Migration, done: int | None) -> None:
    """Run the statements after the first `done`; None if the migration was not begun.

    Only the first of them may have run without a record, so only its objects may exist already.
    """
    interrupted = done is not None
    if done is None:
        values = {"version": migration.version, "name": migration.name, "usable_from": migration.usable_from}
        await cursor.execute(_BEGIN, values)
        await cursor.connection.commit()
    for number, text in enumerate(statements_of(migration)[done or 0 :], (done or 0) + 1):
        try:
            await cursor.execute(text)
        except oracledb.DatabaseError as error:
            if not interrupted or error_number(error) not in _EXISTS_ALREADY:
                raise
        interrupted = False
        await cursor.execute(_STEP, {"done": number, "version": migration.version})
        await cursor.connection.commit()
    await cursor.execute(_END, {"version": migration.version})
    await cursor.connection.commit()


@asynccontextmanager
async def open_cursor(name: str, login: Mapping[str, str]) -> AsyncIterator[oracledb.AsyncCursor]:
    """A cursor on a connection of its own."""
    with _connecting(name):
        connection = await oracledb.connect_async(**login, tcp_connect_timeout=CONNECT_MAX_S)
    try:
        connection.call_timeout = CALL_MAX_MS
        with _errors_named(name), connection.cursor() as cursor:
            yield cursor
    finally:
        with suppress(oracledb.Error):
            await connection.close()


@contextmanager
def _plain_cursor(name: str, login: Mapping[str, str]) -> Iterator[oracledb.Cursor]:
    """A cursor on a connection of its own, without asyncio. Uncommitted changes are rolled back."""
    with _connecting(name):
        connection = oracledb.connect(**login, tcp_connect_timeout=CONNECT_MAX_S)
    with connection:
        connection.call_timeout = CALL_MAX_MS
        with _errors_named(name), connection.cursor() as cursor:
            yield cursor


@contextmanager
def _connecting(name: str) -> Iterator[None]:
    try:
        yield
    except oracledb.Error as error:
        raise StoreUnavailable(f"{name}: the database cannot be reached: {str(error).strip()}") from None


@contextmanager
def _errors_named(name: str) -> Iterator[None]:
    try:
        yield
    except oracledb.Error as error:
        raise translate(name, error) from None
