"""The bulletin board on Postgres. See replica.store.bulletin."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from msgspec.structs import asdict
from psycopg import errors

from replica.notary.errors import StoreMismatch, StoreUnavailable
from replica.notary.formats import Formats
from replica.notary.marks import PEERS_MAX, ContradictedMark
from replica.store.bulletin import NOBODY, PastActivation, Pause
from replica.store.postgres.looking import to_look
from replica.store.postgres.store import Connection, named_statement

_NOT_OUR_SCHEMA = (errors.UndefinedTable, errors.UndefinedColumn, errors.InsufficientPrivilege)


@asynccontextmanager
async def postgres_board(conninfo: str, name: str) -> AsyncIterator[PostgresBoard]:
    """A board on a connection of its own. Raises StoreUnavailable when it cannot connect."""
    try:
        connection = await psycopg.AsyncConnection.connect(to_look(conninfo), autocommit=True, application_name=name)
    except psycopg.Error as error:
        raise StoreUnavailable(f"{name} cannot connect: {str(error).strip()}") from None
    async with connection:
        yield PostgresBoard(connection)


class PostgresBoard:
    """See Board."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def paused(self) -> Pause | None:
        """See Board."""
        return _pause(await self._rows("paused"))

    async def pause(self, reason: str) -> Pause | None:
        """See Board."""
        return _pause(await self._rows("pause", {"reason": reason, "nobody": NOBODY}))

    async def resume(self) -> Pause | None:
        """See Board."""
        return _pause(await self._rows("resume", {"nobody": NOBODY}))

    async def pause_service(self, reason: str) -> Pause | None:
        """See Board."""
        return _pause(await self._rows("pause_service", {"keeper": NOBODY, "reason": reason}))

    async def resume_service(self) -> Pause | None:
        """See Board."""
        return _pause(await self._rows("resume_service", {"keeper": NOBODY}))

    async def history(self, limit: int) -> list[PastActivation]:
        """See Board."""
        return [PastActivation(*row) for row in await self._rows("history", {"limit": limit})]

    async def formats(self) -> Formats:
        """See Board."""
        return _formats(await self._rows("formats"))

    async def raise_formats(self, formats: Formats) -> Formats:
        """See Board."""
        return _formats(await self._rows("raise_formats", {"records": formats.records, "rules": formats.rules}))

    async def end_epoch(self, epoch: int, replica: str, reason: str, age_s: float) -> None:
        """See Board."""
        await self._rows("end_epoch", {"epoch": epoch, "replica": replica, "reason": reason, "age_s": age_s})

    async def contradicted_marks(self) -> list[ContradictedMark]:
        """See ContradictedMarks."""
        return [ContradictedMark(*row) for row in await self._rows("contradicted_marks", {"limit": PEERS_MAX})]

    async def leave_mark(self, left: ContradictedMark) -> None:
        """See ContradictedMarks."""
        await self._rows("leave_mark", asdict(left))

    async def take_mark_away(self, left: ContradictedMark) -> None:
        """See ContradictedMarks."""
        await self._rows("take_mark_away", asdict(left))

    async def newest_of_trail(self) -> bytes | None:
        """See TrailKeeper."""
        return next((line.encode() for (line,) in await self._rows("newest_of_trail")), None)

    async def trail(self, after: int, limit: int) -> list[bytes]:
        """See TrailKeeper."""
        return [line.encode() for (line,) in await self._rows("read_trail", {"after": after, "limit": limit})]

    async def extend_trail(self, number: int, line: bytes) -> bool:
        """See TrailKeeper."""
        return bool(await self._rows("extend_trail", {"number": number, "line": line.decode()}))

    async def _rows(self, name: str, values: Mapping[str, object] | None = None) -> list[tuple[Any, ...]]:
        try:
            return await (await self._connection.execute(named_statement(name), values)).fetchall()
        except _NOT_OUR_SCHEMA as error:
            detail = (
                f"{name}: {str(error).strip()}; run `notary store migrate`, and grant what `notary store roles` prints"
            )
            raise StoreMismatch(detail) from None
        except psycopg.Error as error:
            raise StoreUnavailable(f"{name}: {str(error).strip()}") from None


def _formats(rows: list[tuple[Any, ...]]) -> Formats:
    if not rows:
        raise StoreMismatch("the database has lost its participant row; restore it from a backup")
    return Formats(*rows[0])


def _pause(rows: list[tuple[Any, ...]]) -> Pause | None:
    return Pause(*rows[0]) if rows else None
