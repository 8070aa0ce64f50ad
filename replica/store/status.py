"""What people ask of the participant database, on an ordinary read connection."""

from __future__ import annotations

from datetime import datetime

import msgspec
import psycopg
from psycopg import errors

from replica.notary.errors import StoreMismatch, StoreUnavailable
from replica.notary.salvage import bound_topic_id
from replica.store.looking import to_look
from replica.store.postgres import named_statement


class StoreStatus(msgspec.Struct, frozen=True):
    """The shared state of a participant: the newest epoch and to whom it was granted, and the positions."""

    ledger_id: str
    topic_id: str | None
    epoch: int
    replica: str | None
    granted_at: datetime | None
    published_offset: int
    ledger_end: int
    in_flight: int
    schema_version: int


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
    return StoreStatus(ledger_id, bound_topic_id(bound), *rest)
