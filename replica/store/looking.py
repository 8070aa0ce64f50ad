"""Connections to Postgres on which people and tools look, or leave a word; never the lock session, never for long."""

from __future__ import annotations

from psycopg.conninfo import conninfo_to_dict, make_conninfo

CONNECT_MAX_S = 5
_OPTIONS = "-c statement_timeout=2000 -c lock_timeout=1000"  # ms: that a table is locked by somebody is an answer, too


def to_look(conninfo: str) -> str:
    """The connection string of such a connection. What it gives in `options` stays; ours come behind, and win."""
    given = conninfo_to_dict(conninfo).get("options")
    return make_conninfo(conninfo, connect_timeout=CONNECT_MAX_S, options=f"{given or ''} {_OPTIONS}".strip())
