"""Postgres as a kind of database: see DatabaseKind."""

from __future__ import annotations

from functools import partial

from replica.notary.errors import ConfigError
from replica.store.reader import CompletionReader
from replica.store.tools import Tools

NAME = "postgres"
PROTECTED_BY = "a database beyond this machine: database.conninfo needs sslmode=verify-full (and sslrootcert)"


def tools(conninfo: str) -> Tools:
    """See DatabaseKind."""
    from replica.store.postgres import adopt, archive_heads, export, lost

    return Tools(
        export_completions=partial(export.export_completions, conninfo),
        export_range=partial(export.export_range, conninfo),
        published_state=partial(export.published_state, conninfo),
        adopt_topic=partial(adopt.adopt_topic, conninfo),
        pending=partial(lost.pending, conninfo),
        archive_heads=partial(archive_heads.run_once, conninfo),
    )


def reader(address: str) -> CompletionReader:
    """See DatabaseKind."""
    from replica.store.postgres.reader import PostgresReader

    return PostgresReader(address)


def parse(conninfo: str) -> dict[str, str]:
    """See DatabaseKind."""
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict

    try:
        return {name: str(value) for name, value in conninfo_to_dict(conninfo).items() if value is not None}
    except ProgrammingError as error:
        raise ConfigError(f"no libpq connection string: {str(error).strip()}") from None


def with_password(conninfo: str, password: str) -> str:
    """See DatabaseKind."""
    from psycopg.conninfo import make_conninfo

    return make_conninfo(conninfo, password=password)


def hosts_in_clear(conninfo: str) -> list[str]:
    """See DatabaseKind."""
    from psycopg.conninfo import conninfo_to_dict

    given = conninfo_to_dict(conninfo)
    if given.get("sslmode") == "verify-full":
        return []
    return [host for name in ("host", "hostaddr") for host in str(given.get(name) or "").split(",") if host]
