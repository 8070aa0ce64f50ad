"""Creates the request log's schema on Postgres, and grants replicas their rights. Run as the schema's owner."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from ha.postgres_session import ENCODING, session_options
from replica.notary.errors import LogRefused, LogUnavailable

PARTITION_RECORDS = 1 << 24
_READER = (
    sql.SQL("GRANT USAGE ON SCHEMA notary_log TO {}"),
    sql.SQL("GRANT SELECT ON notary_log.log_head, notary_log.log_batch TO {}"),
    sql.SQL("GRANT EXECUTE ON FUNCTION notary_log.flushed, notary_log.sees_standbys TO {}"),
)
_WRITER = (
    *_READER,
    sql.SQL(
        "GRANT EXECUTE ON ROUTINE notary_log.append, notary_log.append_and_commit, notary_log.make_partitions TO {}"
    ),
)


def read_sql(name: str) -> bytes:
    """The text of one of this room's SQL files; the server's activity views show the name."""
    lines = files("replica.log.postgres").joinpath(f"sql/{name}.sql").read_text().splitlines()
    return "\n".join([f"/* notary_log.{name} */", *(line for line in lines if not line.startswith("--"))]).encode()


async def install(conninfo: str, *, partition_records: int = PARTITION_RECORDS) -> str:
    """Create an empty log in one transaction; return its id.

    `conninfo` is the owner's. Where standbys count, the owner must be a member of pg_read_all_stats. Raises LogRefused
    when there is a log already or the rights are missing, and LogUnavailable.
    """
    async with _opened(conninfo) as connection:
        await connection.execute(read_sql("schema"))
        head: sql.Composed = sql.SQL(
            "INSERT INTO notary_log.log_head (partition_records) VALUES ({}) RETURNING log_id::text"
        ).format(partition_records)
        row = await (await connection.execute(head)).fetchone()
        await connection.execute("SELECT notary_log.make_partitions()")
    return "" if row is None else str(row[0])


async def grant(conninfo: str, *, readers: tuple[str, ...] = (), writers: tuple[str, ...] = ()) -> None:
    """Grant roles their rights: a reader may read, a writer may read and run the append. May be repeated.

    Only the owner may change or delete a record. Raises LogRefused, LogUnavailable.
    """
    async with _opened(conninfo) as connection:
        for statement in rights(readers=readers, writers=writers):
            await connection.execute(statement)


def rights(*, readers: tuple[str, ...] = (), writers: tuple[str, ...] = ()) -> list[sql.Composed]:
    """The statements that `grant` runs."""
    given = [(role, _READER) for role in readers] + [(role, _WRITER) for role in writers]
    return [statement.format(sql.Identifier(role)) for role, statements in given for statement in statements]


def _to_use(conninfo: str) -> str:
    options = session_options(conninfo_to_dict(conninfo).get("options"))
    return make_conninfo(conninfo, client_encoding=ENCODING, options=options)


@asynccontextmanager
async def _opened(conninfo: str) -> AsyncIterator[psycopg.AsyncConnection[tuple[object, ...]]]:
    """A connection with one transaction, which ends with the block."""
    try:
        async with await psycopg.AsyncConnection.connect(_to_use(conninfo), connect_timeout=5) as connection:
            yield connection
    except psycopg.OperationalError as error:
        raise LogUnavailable(f"the log's database: {str(error).strip()}") from error
    except psycopg.Error as error:
        raise LogRefused(f"the request log on Postgres: {str(error).strip()}") from error
