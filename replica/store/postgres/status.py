"""The status of the participant database for people, on an ordinary read connection."""

from __future__ import annotations

import msgspec
import psycopg
from psycopg import errors

from replica.notary.errors import StoreMismatch, StoreUnavailable
from replica.notary.salvage import bound_topic_id, salvages_named
from replica.store.facts import StoreStatus
from replica.store.postgres.looking import to_look
from replica.store.postgres.store import named_statement


async def read_status(conninfo: str) -> StoreStatus:
    """The present status. Raises StoreUnavailable; StoreMismatch when there is no schema, or no right to read it."""
    try:
        async with await psycopg.AsyncConnection.connect(to_look(conninfo), autocommit=True) as connection:
            row = await (await connection.execute(named_statement("status"))).fetchone()
    except (errors.UndefinedTable, errors.UndefinedColumn, errors.InsufficientPrivilege) as error:
        raise StoreMismatch(f"the database's status could not be read: {str(error).strip()}") from None
    except psycopg.Error as error:
        raise StoreUnavailable(f"the database's status could not be read: {error}") from None
    if row is None:
        raise StoreMismatch("the database has lost its participant row; restore it from a backup")
    ledger_id, bound, *rest = row
    status = StoreStatus(ledger_id, bound_topic_id(bound), *rest)
    return msgspec.structs.replace(status, salvages=salvages_named(bound))
