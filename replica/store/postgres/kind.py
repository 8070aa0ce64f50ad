"""Postgres as a kind of database: see DatabaseKind."""

from __future__ import annotations

from functools import partial

from replica.notary import libpq
from replica.store.reader import CompletionReader
from replica.store.tools import Tools

NAME = "postgres"
PROTECTED_BY = "a database beyond this machine: database.conninfo needs sslmode=verify-full (and sslrootcert)"


def tools(conninfo: str) -> Tools:
    """See DatabaseKind."""
    from replica.store.postgres import adopt, archive_heads, export

    return Tools(
        export_completions=partial(export.export_completions, conninfo),
        export_range=partial(export.export_range, conninfo),
        published_state=partial(export.published_state, conninfo),
        adopt_topic=partial(adopt.adopt_topic, conninfo),
        archive_heads=partial(archive_heads.run_once, conninfo),
    )


def reader(address: str) -> CompletionReader:
    """See DatabaseKind."""
    from replica.store.postgres.reader import PostgresReader

    return PostgresReader(address)


def parse(conninfo: str) -> dict[str, str]:
    """See DatabaseKind."""
    return libpq.parse_conninfo(conninfo)


def with_password(conninfo: str, password: str) -> str:
    """See DatabaseKind."""
    from psycopg.conninfo import make_conninfo

    return make_conninfo(conninfo, password=password)


def hosts_in_clear(conninfo: str) -> list[str]:
    """See DatabaseKind."""
    return libpq.hosts_in_clear(conninfo)
