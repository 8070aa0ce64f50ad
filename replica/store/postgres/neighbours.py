"""Finds what else uses the participant's database; see replica.store.neighbours."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import msgspec
import psycopg

from replica.notary.errors import ReplicaNameTaken, StoreUnavailable
from replica.store.neighbours import Ledger, NamedSession, Neighbours, alive, check_ledgers
from replica.store.postgres.looking import to_look
from replica.store.postgres.store import named_statement

LOOK_EVERY_S = 0.25
LEASE_OVER_S = 1.0  # until the server has ended a silent session for certain


async def check_alone(conninfo: str, name: str, lease_s: float) -> None:
    """Check, before a replica's first session, that no other has its name, and that it is clear which ledger is ours.

    Sessions of an earlier process of ours do no work, and the server ends them within `lease_s`. A session that works,
    or lasts longer, belongs to another replica. Raises ReplicaNameTaken and LedgersShareDatabase, and StoreUnavailable
    when the database cannot be asked.
    """
    try:
        async with await psycopg.AsyncConnection.connect(to_look(conninfo), autocommit=True) as connection:
            first = now = await _look(connection, [name])
            check_ledgers(first)
            for _ in range(round((lease_s + LEASE_OVER_S) / LOOK_EVERY_S)):
                if not now.replicas or alive(first.replicas, now.replicas):
                    break
                await asyncio.sleep(LOOK_EVERY_S)
                now = await _look(connection, [name])
            if now.replicas:
                raise ReplicaNameTaken(f"another replica goes by the name {name}: {now.replicas[0]}")
    except psycopg.Error as error:
        raise StoreUnavailable(f"the database could not be asked for its sessions: {str(error).strip()}") from None


async def look_at_neighbours(conninfo: str, names: Collection[str], between_s: float) -> Neighbours:
    """The sessions with these names, and all ledgers. Of replicas only the living ones, found by two looks. Raises
    StoreUnavailable."""
    try:
        async with await psycopg.AsyncConnection.connect(to_look(conninfo), autocommit=True) as connection:
            before = await _look(connection, names)
            await asyncio.sleep(between_s)
            after = await _look(connection, names)
            return Neighbours([*alive(before.replicas, after.replicas), *after.strangers], after.ledgers)
    except psycopg.Error as error:
        raise StoreUnavailable(f"the database could not be asked for its sessions: {str(error).strip()}") from None


async def _look(connection: psycopg.AsyncConnection[tuple[object, ...]], names: Collection[str]) -> Neighbours:
    sessions = await connection.execute(named_statement("sessions"), {"names": list(names)})
    found = [msgspec.convert(row, NamedSession, strict=False) for row in await _named(sessions)]
    ledgers = await connection.execute(named_statement("ledgers"))
    return Neighbours(found, [msgspec.convert(row, Ledger, strict=False) for row in await _named(ledgers)])


async def _named(cursor: psycopg.AsyncCursor[tuple[object, ...]]) -> list[dict[str, object]]:
    names = [column.name for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in await cursor.fetchall()]
