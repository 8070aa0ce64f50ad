"""Deletes completions up to the bound that the active has moved, on its own connection, in short transactions.

It decides nothing: the bound is in the database, and only the active moves it (`ParticipantStore.prune`). So this may
be stopped at any time, repeated, and run twice at once. Replicas do not log in as the role that may delete.
"""

from __future__ import annotations

from collections.abc import Callable

import psycopg
from psycopg import errors

from replica.notary.errors import StoreMismatch, StoreUnavailable
from replica.store.postgres.looking import to_use
from replica.store.postgres.migrate import CONNECT_MAX_S
from replica.store.postgres.store import named_statement

CHUNK_ROWS = 5_000
_STATEMENT_MAX_S = 30


async def delete_pruned(conninfo: str, report: Callable[[int], None]) -> int:
    """Delete what may be deleted, and return the number of completions. Calls `report` with the total so far.

    Raises StoreUnavailable, and StoreMismatch when the role lacks the right.
    """
    deleted = 0
    try:
        async with await psycopg.AsyncConnection.connect(
            to_use(conninfo), autocommit=True, connect_timeout=CONNECT_MAX_S
        ) as connection:
            await connection.execute(b"SELECT set_config('statement_timeout', %s, false)", (f"{_STATEMENT_MAX_S}s",))
            while True:
                rows = await connection.execute(named_statement("delete_pruned"), {"limit": CHUNK_ROWS})
                (count,) = await rows.fetchone() or (0,)
                if not count:
                    return deleted
                deleted += count
                report(deleted)
    except (errors.UndefinedTable, errors.UndefinedColumn, errors.InsufficientPrivilege) as error:
        raise StoreMismatch(
            f"completions are deleted by the tables' owner, or a member of notary_pruner: {str(error).strip()}"
        ) from None
    except psycopg.Error as error:
        raise StoreUnavailable(f"after {deleted} completions: {str(error).strip()}") from None
