"""The status of the participant database for people, on a connection of its own."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC

from replica.notary.errors import StoreMismatch
from replica.notary.salvage import bound_topic_id, salvages_named
from replica.store.facts import StoreStatus
from replica.store.oracle.looking import open_cursor
from replica.store.oracle.store import named_statement


async def read_status(login: Mapping[str, str]) -> StoreStatus:
    """The present status. Raises StoreUnavailable; StoreMismatch when there is no schema, or no right to read it."""
    async with open_cursor("status", login) as cursor:
        await cursor.execute(named_statement("status"))
        row = await cursor.fetchone()
    if row is None:
        raise StoreMismatch("the database has lost its participant row; restore it from a backup")
    ledger_id, bound, epoch, replica, granted_at, *numbers = row
    published_offset, ledger_end, schema_version = map(int, numbers)
    return StoreStatus(
        ledger_id,
        bound_topic_id(bound),
        int(epoch),
        replica,
        None if granted_at is None else granted_at.replace(tzinfo=UTC),
        published_offset,
        ledger_end,
        schema_version,
        salvages_named(bound),
    )
