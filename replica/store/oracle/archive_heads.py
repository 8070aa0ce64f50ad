"""Statements on the head of the archive's manifest, each on a connection of its own. See replica.store.archive_head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from replica.store.oracle.looking import plain_cursor
from replica.store.oracle.store import named_statement


def run_once(login: Mapping[str, str], name: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """The rows of one statement. Raises StoreUnavailable and StoreMismatch."""
    with plain_cursor(name, login) as cursor:
        cursor.execute(named_statement(name), dict(values), fetch_lobs=False)
        rows = cursor.fetchall() if cursor.description else []
        cursor.connection.commit()
        return rows
