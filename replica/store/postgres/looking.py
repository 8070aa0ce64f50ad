"""Connections to Postgres for reads and notes of people and tools: never the lock session, and never for long."""

from __future__ import annotations

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from replica.notary.errors import StoreMismatch

CONNECT_MAX_S = 5
ENCODING = "UTF8"  # of the database and of every connection: texts are Unicode, and are returned unchanged
_LIMITS = "-c statement_timeout=2000 -c lock_timeout=1000"  # ms: a table lock of another session must not block us
# s: a machine that vanishes closes no connection, and by default the server would keep it for two hours
_KEEPALIVE = "-c tcp_keepalives_idle=10 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3"


def in_unicode(conninfo: str) -> str:
    """The string of a connection without text conversion, whatever it or the environment asks for."""
    return make_conninfo(conninfo, client_encoding=ENCODING)


def check_encoding(encoding: object) -> None:
    """Raises StoreMismatch unless a database of that encoding keeps every text."""
    if encoding != ENCODING:
        raise StoreMismatch(
            f"the database's encoding is {encoding}; only {ENCODING} holds every text. Dump it, and restore it into a"
            f" database made with ENCODING '{ENCODING}' TEMPLATE template0"
        )


def to_look(conninfo: str) -> str:
    """The connection string of such a connection. Its own `options` are kept; ours come after and take precedence."""
    given = conninfo_to_dict(conninfo).get("options")
    return make_conninfo(
        in_unicode(conninfo),
        connect_timeout=CONNECT_MAX_S,
        options=f"{given or ''} {_LIMITS} {_KEEPALIVE}".strip(),
    )
