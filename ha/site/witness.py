"""Where the term is kept: one row in a database on Postgres that is lost with neither site.

Every change is one statement on that row, so two of them happen one after the other: the second one judges the row
that the first one left. Each question has a connection of its own and is one message, which the server carries out
whole or not at all: a replica that freezes in the middle holds no lock on the row, which would bar all others.
"""

from __future__ import annotations

import asyncio
from typing import Any, LiteralString, Protocol

import psycopg
from psycopg.errors import Diagnostic, InvalidSchemaName, UndefinedTable

from ha.errors import WitnessUnavailable
from ha.lock.postgres import DirectConnection
from ha.site.core import Term

ANSWER_MAX_S = 10.0  # for one question; whoever renews asks anew much sooner

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
# A renewal that a crash takes back would let the other site take a term that a replica claims. A statement that waits
# for a lock of somebody else ends after ANSWER_MAX_S, or each beat would leave one more at the server.
_TERMS: LiteralString = "set local synchronous_commit = on; set local statement_timeout = '10s';"
_SEE: LiteralString = f"select {_COLUMNS} from notary_site.term"  # noqa: S608
_RENEW: LiteralString = f"""
    update notary_site.term set beat = beat + 1 where site = %s and log_id = %s returning {_COLUMNS}
"""  # noqa: S608
_FIRST: LiteralString = f"""
    insert into notary_site.term ({_COLUMNS}) values (%s, %s, %s, %s, %s, %s) on conflict do nothing returning number
"""  # noqa: S608
_NEXT: LiteralString = f"""
    update notary_site.term set ({_COLUMNS}) = row(%s::bigint, %s::text, %s::text, %s::float8, %s::bigint, %s::text[])
     where number = %s and beat = %s returning number
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
        try:
            found = await self._ask(_SEE)
        except (UndefinedTable, InvalidSchemaName):
            return None
        return _term(found[0]) if found else None

    async def renew(self, site: str, log_id: str) -> tuple[Term | None, bool]:
        """See Witness."""
        try:
            found = await self._ask(_RENEW, (site, log_id))
        except (UndefinedTable, InvalidSchemaName):
            return None, False
        return (_term(found[0]), True) if found else (await self.see(), False)

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
        if seen is None:
            await self._ask(_MAKE)
            return bool(await self._ask(_FIRST, values))
        return bool(await self._ask(_NEXT, (*values, seen.number, seen.beat)))

    async def _ask(self, statement: LiteralString, values: tuple[object, ...] = ()) -> list[Any]:
        """The rows of one statement, which is committed. Raises WitnessUnavailable, UndefinedTable and
        InvalidSchemaName."""
        try:
            async with asyncio.timeout(ANSWER_MAX_S):
                return await self._asked(statement, values)
        except TimeoutError as error:
            raise WitnessUnavailable(f"no answer within {ANSWER_MAX_S:g} s") from error
        except (UndefinedTable, InvalidSchemaName):
            raise
        except psycopg.Error as error:
            raise WitnessUnavailable(" ".join(str(error).split()) or type(error).__name__) from error

    async def _asked(self, statement: LiteralString, values: tuple[object, ...]) -> list[Any]:
        warnings: list[str] = []

        def note(told: Diagnostic) -> None:
            if told.severity_nonlocalized == "WARNING":
                warnings.append(told.message_primary or "")

        async with await DirectConnection.connect(
            self._conninfo, autocommit=True, cursor_factory=psycopg.AsyncClientCursor
        ) as connection:
            connection.add_notice_handler(note)
            answer = await connection.execute(_TERMS + statement, values)
            while answer.nextset():
                pass
            if warnings:  # such as of a commit that did not wait for its standby
                raise WitnessUnavailable(f"the change may be lost: {'; '.join(warnings)}")
            return await answer.fetchall() if answer.description else []


def _term(row: Any) -> Term:
    number, site, log_id, lease_s, beat, former_logs = row
    return Term(number, site, log_id, lease_s, beat, tuple(former_logs))
