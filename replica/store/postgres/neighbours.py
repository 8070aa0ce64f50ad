"""What else uses the participant's database: sessions that go by one replica's name, and other ledgers.

Two replicas of one name would each take the other's lock for its own, and two ledgers in one database, under different
search paths, would share one lock. Neither loses anything, because the log decides; neither can serve.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

import msgspec
import psycopg

from replica.notary.errors import LedgersShareDatabase, ReplicaNameTaken, StoreUnavailable
from replica.store.postgres.looking import to_look
from replica.store.postgres.store import named_statement

LOOK_EVERY_S = 0.25
LEASE_OVER_S = 1.0  # until the server has ended a silent session for certain


class NamedSession(msgspec.Struct, frozen=True):
    """A session that goes by a replica's name. `moved_us`: when its newest statement began or ended, by the server."""

    pid: int
    name: str
    user: str
    address: str
    moved_us: int | None

    def __str__(self) -> str:
        return f"session {self.pid} of user {self.user}" + (f" from {self.address}" if self.address else "")


class Ledger(msgspec.Struct, frozen=True):
    """A schema with the tables of a participant. `ours`: it is what the search path leads to."""

    schema: str
    owner: str
    ours: bool


class Neighbours(msgspec.Struct, frozen=True):
    """All of them, at one moment."""

    sessions: Sequence[NamedSession]
    ledgers: Sequence[Ledger]


def alive(before: Iterable[NamedSession], after: Iterable[NamedSession]) -> list[NamedSession]:
    """Those that have worked between two looks. What a dead replica leaves does not, until the server ends it."""
    earlier = {session.pid: session.moved_us for session in before}
    return [session for session in after if session.pid in earlier and session.moved_us != earlier[session.pid]]


def taken_twice(living: Iterable[NamedSession]) -> dict[str, list[NamedSession]]:
    """The names that several living sessions go by, with those."""
    living = list(living)
    names = Counter(session.name for session in living)
    return {name: [s for s in living if s.name == name] for name, count in names.items() if count > 1}


def check_ledgers(ledgers: Iterable[Ledger]) -> None:
    """Raises LedgersShareDatabase when the database has the tables of another ledger than ours."""
    others = [f"{ledger.schema} (of {ledger.owner})" for ledger in ledgers if not ledger.ours]
    if others:
        raise LedgersShareDatabase(
            f"this database has the tables of another ledger, in schema {', '.join(others)}: both would share one lock"
        )


async def check_alone(conninfo: str, name: str, lease_s: float) -> None:
    """Before a replica opens its first session: nobody else goes by its name, and no other ledger is here.

    What an earlier process of ours left does nothing, and the server ends it within `lease_s`: what works, or is there
    longer, is somebody else's. Raises ReplicaNameTaken and LedgersShareDatabase, and StoreUnavailable when the database
    cannot be asked.
    """
    try:
        async with await psycopg.AsyncConnection.connect(to_look(conninfo), autocommit=True) as connection:
            first = await _look(connection, [name])
            check_ledgers(first.ledgers)
            now = first
            for _ in range(round((lease_s + LEASE_OVER_S) / LOOK_EVERY_S)):
                if not now.sessions or alive(first.sessions, now.sessions):
                    break
                await asyncio.sleep(LOOK_EVERY_S)
                now = await _look(connection, [name])
            if now.sessions:
                raise ReplicaNameTaken(f"another replica goes by the name {name}: {now.sessions[0]}")
    except psycopg.Error as error:
        raise StoreUnavailable(f"the database could not be asked for its sessions: {str(error).strip()}") from None


async def look_at_neighbours(conninfo: str, names: Collection[str], between_s: float) -> Neighbours:
    """The living sessions that go by these names, seen in two looks, and all ledgers. Raises StoreUnavailable."""
    try:
        async with await psycopg.AsyncConnection.connect(to_look(conninfo), autocommit=True) as connection:
            before = await _look(connection, names)
            await asyncio.sleep(between_s)
            after = await _look(connection, names)
            return Neighbours(alive(before.sessions, after.sessions), after.ledgers)
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
