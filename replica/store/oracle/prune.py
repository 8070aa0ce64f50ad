"""Deletes completions up to the bound that the active has moved, in short transactions: see the file on Postgres."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from replica.store.oracle.looking import plain_cursor
from replica.store.oracle.store import named_statement

CHUNK_ROWS = 5_000  # completions deleted in one transaction


def delete_pruned(login: Mapping[str, str], report: Callable[[int], None]) -> int:
    """Delete completions below the bound that the active has moved; see replica.store.postgres.prune."""
    deleted = 0
    with plain_cursor("delete_pruned", login) as cursor:
        while True:
            cursor.execute(named_statement("oldest_kept"))
            oldest, pruned_to = cursor.fetchone() or (None, 0)
            if oldest is None or oldest > pruned_to:
                return deleted
            up_to = min(int(pruned_to), int(oldest) + CHUNK_ROWS - 1)
            cursor.execute(named_statement("delete_completions"), {"up_to": up_to})
            cursor.connection.commit()
            deleted += up_to - int(oldest) + 1
            report(deleted)
