"""Connections to Postgres on which people and tools look, or leave a word; never the lock session, never for long."""

from __future__ import annotations

from psycopg.conninfo import conninfo_to_dict, make_conninfo

CONNECT_MAX_S = 5
_LIMITS = "-c statement_timeout=2000 -c lock_timeout=1000"  # ms: that a table is locked by somebody is an answer, too
# s: a machine that vanishes says no good-bye, and by itself the server would keep its connections for two hours
_KEEPALIVE = "-c tcp_keepalives_idle=10 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3"


def to_look(conninfo: str) -> str:
    """The connection string of such a connection. What it gives in `options` stays; ours come behind, and win."""
    given = conninfo_to_dict(conninfo).get("options")
    return make_conninfo(
        conninfo, connect_timeout=CONNECT_MAX_S, options=f"{given or ''} {_LIMITS} {_KEEPALIVE}".strip()
    )
