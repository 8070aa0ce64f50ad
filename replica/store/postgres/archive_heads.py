"""Statements on the head of the archive's manifest, each on a connection of its own. See replica.store.archive_head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg

from replica.notary.errors import StoreMismatch, StoreUnavailable
from replica.store.postgres.looking import to_use
from replica.store.postgres.migrate import CONNECT_MAX_S
from replica.store.postgres.store import named_statement


def run_once(conninfo: str, name: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """The rows of one statement. Raises StoreUnavailable and StoreMismatch."""
    try:
        with psycopg.connect(to_use(conninfo), autocommit=True, connect_timeout=CONNECT_MAX_S) as connection:
            found = connection.execute(named_statement(name), values)
            return found.fetchall() if found.description else []
    except (psycopg.errors.UndefinedTable, psycopg.errors.InsufficientPrivilege) as error:
        raise StoreMismatch(
            f"the archive's head: {str(error).strip()}; see `notary store migrate` and `notary store roles`"
        ) from None
    except psycopg.Error as error:
        raise StoreUnavailable(f"the archive's head could not be read or written: {error}") from None
