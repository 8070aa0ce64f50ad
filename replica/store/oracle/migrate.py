"""Brings an Oracle database to this release's schema: numbered SQL files, each applied once, under a lock.

Migrations only add, as on Postgres: see replica.store.postgres.migrate.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import oracledb

from replica.notary.errors import StoreUnavailable
from replica.store.oracle.errors import error_number
from replica.store.oracle.looking import BUSY, GRANTED, REQUEST_LOCK, open_cursor
from replica.store.schema import LOCK_WAIT_S, Migration, check_not_newer, read_migrations

_EXISTS_ALREADY = {955, 1430, 2260, 2261, 2275}  # a table or view, a column, a key, a constraint
_NO_TABLE = 942
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


def newest_version() -> int:
    """The schema version that this release knows."""
    return read_migrations("oracle")[-1].version


async def migrate(login: Mapping[str, str], lock_id: int) -> list[str]:
    """Apply the missing migrations, and return their names. `login`: user, password and dsn.

    Oracle commits with every change of a schema, so a migration is not atomic. Each finished statement is recorded, and
    the next call continues after it. Raises StoreMismatch when the database is too new for this release, and
    StoreUnavailable when it cannot be reached or another migration does not end.
    """
    async with open_cursor("migrate", login) as cursor:
        result = cursor.var(int)
        await cursor.execute(REQUEST_LOCK, {"id": lock_id, "seconds": LOCK_WAIT_S, "result": result})
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
