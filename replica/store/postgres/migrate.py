"""Brings a Postgres database to this release's schema: numbered SQL files, each applied once, under a lock.

Migrations only add. So earlier releases work with the newer schema while replicas are replaced one by one. The first
line of each migration is `-- usable from version N`: the oldest version that a release must know to use the schema.
"""

from __future__ import annotations

import psycopg

from replica.notary.errors import LedgersShareDatabase, StoreMismatch, StoreUnavailable
from replica.store.postgres.looking import check_encoding, to_use
from replica.store.schema import LOCK_WAIT_S, Migration, check_not_newer, read_migrations, read_statement

CONNECT_MAX_S = 5
_VERSIONS = """
CREATE TABLE schema_version (
    version     integer PRIMARY KEY,
    name        text        NOT NULL,
    usable_from integer     NOT NULL,
    applied_at  timestamptz NOT NULL DEFAULT clock_timestamp()
)
"""


def migrations() -> tuple[Migration, ...]:
    """Every migration of this release, oldest first."""
    return read_migrations("postgres")


def newest_version() -> int:
    """The schema version that this release knows."""
    return migrations()[-1].version


async def migrate(conninfo: str, lock_id: int) -> list[str]:
    """Apply the missing migrations in one transaction, and return their names. Needs no rights when none is missing.

    `lock_id`: the advisory lock that excludes another migration. Raises StoreMismatch when this release cannot use the
    database because it is newer or has another encoding, and StoreUnavailable when it cannot be reached or another
    migration does not end.
    """
    try:
        async with await psycopg.AsyncConnection.connect(to_use(conninfo), connect_timeout=CONNECT_MAX_S) as connection:
            await connection.execute(b"SELECT set_config('lock_timeout', %s, true)", (f"{LOCK_WAIT_S}s",))
            await connection.execute(b"SELECT pg_advisory_xact_lock(%s)", (lock_id,))
            check_encoding(connection.info.parameter_status("server_encoding"))
            return await _apply_missing(connection)
    except psycopg.OperationalError as error:
        raise StoreUnavailable(f"the schema could not be brought up to date: {str(error).strip()}") from None
    except psycopg.errors.InsufficientPrivilege as error:
        raise StoreMismatch(f"migrations are applied by the tables' owner: {str(error).strip()}") from None


async def _apply_missing(connection: psycopg.AsyncConnection[tuple[object, ...]]) -> list[str]:
    (exists,) = await _one(connection, b"SELECT to_regclass('schema_version') IS NOT NULL")
    if not exists:
        await _check_alone(connection)
        await connection.execute(_VERSIONS)
    version, usable_from = await _one(
        connection, b"SELECT coalesce(max(version), 0), coalesce(max(usable_from), 0) FROM schema_version"
    )
    check_not_newer(version, usable_from, newest_version())
    missing = [migration for migration in migrations() if migration.version > version]
    for migration in missing:
        await connection.execute(migration.text)
        await connection.execute(
            b"INSERT INTO schema_version (version, name, usable_from) VALUES (%s, %s, %s)",
            (migration.version, migration.name, migration.usable_from),
        )
    return [migration.name for migration in missing]


async def _check_alone(connection: psycopg.AsyncConnection[tuple[object, ...]]) -> None:
    """Raises LedgersShareDatabase when another schema has a ledger already."""
    rows = await (await connection.execute(read_statement("postgres", "ledgers").encode())).fetchall()
    others = [str(schema) for schema, *_ in rows]
    if others:
        raise LedgersShareDatabase(f"this database has the tables of a ledger already, in schema {', '.join(others)}")


async def _one(connection: psycopg.AsyncConnection[tuple[object, ...]], query: bytes) -> tuple[int, ...]:
    row = await (await connection.execute(query)).fetchone()
    return tuple(value for value in row or () if isinstance(value, int))
