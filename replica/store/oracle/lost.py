"""The commands without a completion, as a lost topic leaves them in the database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from replica.store.oracle.looking import plain_cursor
from replica.store.oracle.store import named_statement


def pending(login: Mapping[str, str], limit: int) -> list[tuple[Any, ...]]:
    """Rows of the commands that were admitted and have no completion, at most `limit`. Raises StoreUnavailable."""
    with plain_cursor("pending", login) as cursor:
        cursor.execute(named_statement("pending"), {"row_count": limit}, fetch_lobs=False)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows
