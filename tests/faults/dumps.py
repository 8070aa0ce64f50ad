"""Dumps, drops and restores the notary's database: runbooks/database-restore.md. No replica may be running."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import LiteralString

import psycopg
from psycopg import sql

from replica.local.cluster import LocalCluster
from replica.local.participant import DATABASE, OWNER
from replica.local.postgres import find_binaries

TOOL_MAX_S = 120.0
_KEPT = "notary_kept"
_DATABASE, _ASIDE = sql.Identifier(DATABASE), sql.Identifier(_KEPT)


async def dump(cluster: LocalCluster, path: Path) -> None:
    """Write the database to a file, as of one moment; replicas may run."""
    await _run("pg_dump", "--format=custom", f"--file={path}", cluster.postgres.dsn(DATABASE))


async def restore(cluster: LocalCluster, path: Path, encoding: str = "UTF8") -> None:
    """Make the database, which must not be there, from a file that `dump` wrote."""
    create: LiteralString = "CREATE DATABASE {} OWNER {} TEMPLATE template0 ENCODING {} LC_COLLATE 'C' LC_CTYPE 'C'"
    await _execute(
        cluster,
        sql.SQL(create).format(_DATABASE, sql.Identifier(OWNER), sql.Literal(encoding)),
        sql.SQL("REVOKE ALL ON DATABASE {} FROM PUBLIC").format(_DATABASE),
        sql.SQL("GRANT CONNECT ON DATABASE {} TO notary_reader").format(_DATABASE),
    )
    await _run("pg_restore", "--exit-on-error", f"--dbname={cluster.postgres.dsn(DATABASE)}", str(path))


@asynccontextmanager
async def put_aside(cluster: LocalCluster) -> AsyncIterator[None]:
    """Free the database's name while the block runs. Afterwards drop what has that name, and restore the name."""
    await _rename(cluster, _DATABASE, _ASIDE)
    try:
        yield
    finally:
        await cluster.postgres.drop_database(DATABASE)
        await _rename(cluster, _ASIDE, _DATABASE)


async def _rename(cluster: LocalCluster, name: sql.Identifier, to: sql.Identifier) -> None:
    await _execute(cluster, sql.SQL("ALTER DATABASE {} RENAME TO {}").format(name, to))


async def _execute(cluster: LocalCluster, *statements: sql.Composed) -> None:
    async with await psycopg.AsyncConnection.connect(cluster.postgres.dsn(), autocommit=True) as connection:
        for statement in statements:
            await connection.execute(statement)


async def _run(tool: str, *words: str) -> None:
    argv = [str(find_binaries() / tool), *words]
    await asyncio.to_thread(subprocess.run, argv, check=True, timeout=TOOL_MAX_S)
