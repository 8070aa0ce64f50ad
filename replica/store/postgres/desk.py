"""What a notary worker asks of Postgres, on a connection of its own. See replica.store.desk."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from psycopg import errors

from replica.notary.errors import StoreMismatch, StoreUnavailable
from replica.notary.position import decode_position
from replica.store.desk import DeskSeen, Drawn
from replica.store.postgres.looking import to_look
from replica.store.postgres.store import Connection, named_statement

_NOT_OUR_SCHEMA = (errors.UndefinedTable, errors.UndefinedColumn, errors.InsufficientPrivilege)
# A draw that a crash of this server undid would be given away twice under one name. A standby that lacks it does not
# matter: once promoted, its name is another one.
_DURABLE = b"SELECT set_config('synchronous_commit', 'on', false)"


@asynccontextmanager
async def postgres_desk(conninfo: str, name: str) -> AsyncIterator[PostgresDesk]:
    """A desk on a connection of its own. Raises StoreUnavailable when it cannot connect."""
    try:
        connection = await psycopg.AsyncConnection.connect(to_look(conninfo), autocommit=True, application_name=name)
    except psycopg.Error as error:
        raise StoreUnavailable(f"{name} cannot connect: {str(error).strip()}") from None
    async with connection:
        desk = PostgresDesk(connection)
        await desk.make_durable()
        yield desk


class PostgresDesk:
    """See Desk."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def make_durable(self) -> None:
        """Let every commit wait until it is on disk, whatever the server's default is."""
        await self._rows("durable", _DURABLE)

    async def look(self) -> DeskSeen:
        """See Desk."""
        wall_us, position, *counters = await self._row("desk")
        return DeskSeen(wall_us, None if position is None else decode_position(position), *counters)

    async def draw(self) -> Drawn:
        """See Desk."""
        return Drawn(*await self._row("draw_numbers"))

    async def _row(self, name: str) -> tuple[Any, ...]:
        rows = await self._rows(name, named_statement(name))
        if not rows:
            raise StoreMismatch(f"{name}: the database has lost a row that it never loses; restore it from a backup")
        return rows[0]

    async def _rows(
        self, name: str, statement: bytes, values: Mapping[str, object] | None = None
    ) -> list[tuple[Any, ...]]:
        try:
            return await (await self._connection.execute(statement, values)).fetchall()
        except _NOT_OUR_SCHEMA as error:
            detail = (
                f"{name}: {str(error).strip()}; run `notary store migrate`, and grant what `notary store roles` prints"
            )
            raise StoreMismatch(detail) from None
        except psycopg.Error as error:
            raise StoreUnavailable(f"{name}: {str(error).strip()}") from None
