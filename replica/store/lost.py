"""What the database tells of a lost topic: completions behind the archive's end, and commands without one."""

from __future__ import annotations

from typing import Any

import psycopg

from replica.notary.errors import StoreUnavailable
from replica.store.looking import in_unicode
from replica.store.migrate import CONNECT_MAX_S
from replica.store.oracle_login import is_oracle, parse_oracle
from replica.store.postgres import named_statement

_COMMANDS_MAX = 1_000_000  # settings bound what is in flight far below
_TX_ID_AT = 5


def commands_in_flight(conninfo: str) -> list[bytes]:
    """Transaction ids of the commands that were admitted and have no completion. Raises StoreUnavailable."""
    rows: list[tuple[Any, ...]]
    if is_oracle(conninfo):
        from replica.store.oracle_tools import run_once

        rows = run_once(parse_oracle(conninfo), "pending", {"row_count": _COMMANDS_MAX})
    else:
        try:
            with psycopg.connect(in_unicode(conninfo), autocommit=True, connect_timeout=CONNECT_MAX_S) as connection:
                rows = connection.execute(named_statement("pending"), {"limit": _COMMANDS_MAX}, binary=True).fetchall()
        except psycopg.Error as error:
            raise StoreUnavailable(f"the commands in flight could not be read: {error}") from None
    return [bytes(row[_TX_ID_AT]) for row in rows]
