"""Where the term is kept: one row in a database on Postgres that is lost with neither site.

Every change is one statement on that row, so two of them happen one after the other: the second one judges the row
that the first one left. Each question has a connection of its own, which leaves nothing half open.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, LiteralString, Protocol

import psycopg
from psycopg.errors import InvalidSchemaName, UndefinedTable

from ha.errors import WitnessUnavailable
from ha.site.core import Term

_COLUMNS: LiteralString = "number, site, log_id, lease_s, beat, former_logs"
_MAKE: LiteralString = """
    create schema if not exists notary_site;
    create table if not exists notary_site.term (
        only_one boolean primary key default true check (only_one),
        number bigint not null,
        site text not null,
        log_id text not null,
        lease_s float8 not null,
        beat bigint not null,
        former_logs text[] not null
    )
"""
# A renewal that a crash takes back would let the other site take a term that a replica claims.
_DURABLE: LiteralString = "set local synchronous_commit = on"
_SEE: LiteralString = f"select {_COLUMNS} from notary_site.term"  # noqa: S608
_RENEW: LiteralString = f"""
    update notary_site.term set beat = beat + 1 where site = %s and log_id = %s returning {_COLUMNS}
"""  # noqa: S608
_FIRST: LiteralString = f"""
    insert into notary_site.term ({_COLUMNS}) values (%s, %s, %s, %s, %s, %s) on conflict do nothing
"""  # noqa: S608
_NEXT: LiteralString = f"""
    update notary_site.term set ({_COLUMNS}) = row(%s::bigint, %s::text, %s::text, %s::float8, %s::bigint, %s::text[])
     where number = %s and beat = %s
"""  # noqa: S608


class Witness(Protocol):
    """Keeps the newest term. All raise WitnessUnavailable: then a change may have been made, or not."""

    async def see(self) -> Term | None:
        """The term; None before the first."""

    async def renew(self, site: str, log_id: str) -> tuple[Term | None, bool]:
        """Raise the beat of the term if it is of this site and log: the term as it is now; whether that was done."""

    async def take(self, seen: Term | None, following: Term) -> bool:
        """Put a term in place of that one, if the witness has it still, with this very beat."""


class PostgresWitness:
    """See Witness."""

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo

    async def see(self) -> Term | None:
        """See Witness."""
        async with self._connected() as connection:
            return await _seen(connection)

    async def renew(self, site: str, log_id: str) -> tuple[Term | None, bool]:
        """See Witness."""
        async with self._connected() as connection:
            try:
                found = await (await connection.execute(_RENEW, (site, log_id))).fetchone()
            except (UndefinedTable, InvalidSchemaName):
                return None, False
            return (await _seen(connection), False) if found is None else (_term(found), True)

    async def take(self, seen: Term | None, following: Term) -> bool:
        """See Witness."""
        values = (
            following.number,
            following.site,
            following.log_id,
            following.lease_s,
            following.beat,
            list(following.former_logs),
        )
        async with self._connected() as connection:
            if seen is None:
                await connection.execute(_MAKE)
                made = await connection.execute(_FIRST, values)
            else:
                made = await connection.execute(_NEXT, (*values, seen.number, seen.beat))
            return made.rowcount == 1

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        """One transaction, committed at a normal end."""
        try:
            async with await psycopg.AsyncConnection.connect(self._conninfo, prepare_threshold=None) as connection:
                await connection.execute(_DURABLE)
                yield connection
        except psycopg.Error as error:
            raise WitnessUnavailable(" ".join(str(error).split()) or type(error).__name__) from error


async def _seen(connection: psycopg.AsyncConnection[Any]) -> Term | None:
    try:
        found = await (await connection.execute(_SEE)).fetchone()
    except (UndefinedTable, InvalidSchemaName):
        return None
    return None if found is None else _term(found)


def _term(row: Any) -> Term:
    number, site, log_id, lease_s, beat, former_logs = row
    return Term(number, site, log_id, lease_s, beat, tuple(former_logs))
