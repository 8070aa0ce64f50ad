"""What people ask of the participant database, on an ordinary read connection."""

from __future__ import annotations

from datetime import datetime

import msgspec
import psycopg

from replica.notary.errors import StoreUnavailable
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


async def read_status(conninfo: str) -> StoreStatus:
    """The present status. Raises StoreUnavailable."""
    try:
        async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True, connect_timeout=5) as connection:
            row = await (await connection.execute(named_statement("status"))).fetchone()
    except psycopg.Error as error:
        raise StoreUnavailable(f"the database's status could not be read: {error}") from None
    if row is None:
        raise StoreUnavailable("the database has no participant row; run `notary store migrate`")
    return StoreStatus(*row)
