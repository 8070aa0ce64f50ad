"""Connections to Postgres for reads and notes of people and tools: never the lock session, and never for long."""

from __future__ import annotations

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from ha.postgres_session import ENCODING, session_options
from replica.notary.errors import StoreMismatch

CONNECT_MAX_S = 5
_LIMITS = {
    "statement_timeout": 2_000,  # ms
    "lock_timeout": 1_000,  # a table lock of another session must not block us
    # s: a machine that vanishes closes no connection, and by default the server would keep it for two hours
    "tcp_keepalives_idle": 10,
    "tcp_keepalives_interval": 5,
    "tcp_keepalives_count": 3,
}


def to_use(conninfo: str) -> str:
    """The string of a connection with the settings that ours rest on, whatever it or the environment asks for."""
    options = session_options(conninfo_to_dict(conninfo).get("options"))
    return make_conninfo(conninfo, client_encoding=ENCODING, options=options)


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
        conninfo,
        client_encoding=ENCODING,
        connect_timeout=CONNECT_MAX_S,
        options=session_options(given, _LIMITS),
    )
