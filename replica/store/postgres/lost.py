"""The commands without a completion, as a lost topic leaves them in the database."""

from __future__ import annotations

from typing import Any

import psycopg

from replica.notary.errors import StoreUnavailable
from replica.store.postgres.looking import to_use
from replica.store.postgres.migrate import CONNECT_MAX_S
from replica.store.postgres.store import named_statement


def pending(conninfo: str, limit: int) -> list[tuple[Any, ...]]:
    """Rows of the commands that were admitted and have no completion, at most `limit`. Raises StoreUnavailable."""
    try:
        with psycopg.connect(to_use(conninfo), autocommit=True, connect_timeout=CONNECT_MAX_S) as connection:
            return connection.execute(named_statement("pending"), {"limit": limit}, binary=True).fetchall()
    except psycopg.Error as error:
        raise StoreUnavailable(f"the commands in flight could not be read: {error}") from None
