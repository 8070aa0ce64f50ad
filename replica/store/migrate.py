"""Brings the participant database to this release's schema: numbered SQL files, each applied once, under a lock."""

from __future__ import annotations

from importlib.resources import files

import psycopg

from replica.notary.errors import StoreMismatch, StoreUnavailable

_VERSIONS = """
CREATE TABLE IF NOT EXISTS schema_version (
    version    integer PRIMARY KEY,
    name       text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
)
"""
_LOCK_WAIT_S = 30


def migrations() -> list[tuple[int, str, bytes]]:
    """Number, file name and text of every migration of this release, in order."""
    folder = files("replica.store").joinpath("migrations/postgres")
    found = [
        (int(item.name[:4]), item.name, item.read_bytes()) for item in folder.iterdir() if item.name.endswith(".sql")
    ]
    return sorted(found)


async def migrate(conninfo: str, lock_id: int) -> list[str]:
    """Apply what is missing, each file in a transaction of its own; the names of what was applied.

    `lock_id`: the advisory lock that keeps two migrations apart. Raises StoreMismatch when the database is newer than
    this release, and StoreUnavailable when it cannot be reached or another migration does not end.
    """
    try:
        async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True, connect_timeout=5) as connection:
            await connection.execute(b"SELECT set_config('lock_timeout', %s, false)", (f"{_LOCK_WAIT_S}s",))
            await connection.execute(b"SELECT pg_advisory_lock(%s)", (lock_id,))
            return await _apply_missing(connection)
    except psycopg.OperationalError as error:
        raise StoreUnavailable(f"the schema could not be brought up to date: {error}") from None


async def _apply_missing(connection: psycopg.AsyncConnection[tuple[object, ...]]) -> list[str]:
    await connection.execute(_VERSIONS)
    rows = await (await connection.execute(b"SELECT version FROM schema_version")).fetchall()
    applied = {row[0] for row in rows}
    known = migrations()
    unknown = applied - {number for number, _, _ in known}
    if unknown:
        raise StoreMismatch(
            f"the database has schema version {max(map(int, map(str, unknown)))}, newer than this release"
        )
    done = []
    for number, name, text in known:
        if number not in applied:
            async with connection.transaction():
                await connection.execute(text)
                await connection.execute(b"INSERT INTO schema_version (version, name) VALUES (%s, %s)", (number, name))
            done.append(name)
    return done
