"""What `oracledb.connect_async` and `oracledb.connect` give, as far as the product uses it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, cast

import oracledb
import pytest
from oracledb import errors

from ha.lock import oracle_connection
from tests.oracle.server import NOT_LOGGED_ON, OracleServer
from tests.oracle.tables import OracleError, returns_lobs

_PLACEHOLDER = re.compile(r"(?<![:\w']):([a-z]\w*)")
_TEXT = re.compile(r"'[^']*'|/\*.*?\*/|--[^\n]*", re.DOTALL)
_KINDS = (int, str, bytes, type(None))


def install(monkeypatch: pytest.MonkeyPatch, server: OracleServer) -> list[dict[str, Any]]:
    """Lead the driver's connections to the double; returns the arguments of each connection that is made."""
    asked: list[dict[str, Any]] = []

    async def connect_async(**parameters: Any) -> Connection:
        asked.append(parameters)
        await asyncio.sleep(0)
        return Connection(server)

    def connect(**parameters: Any) -> PlainConnection:
        asked.append(parameters)
        return PlainConnection(server)

    monkeypatch.setattr(oracledb, "connect_async", connect_async)
    monkeypatch.setattr(oracledb, "connect", connect)
    return asked


def driver_error(number: int, text: str) -> Exception:
    """An error of the server's as the real driver makes it: its own class, its own message, dead or alive."""
    error = errors._Error(text, code=number)
    return cast(Exception, error.exc_type(error))


def connection_closed() -> Exception:
    """What the real driver raises when its transport is gone."""
    error = errors._create_err(errors.ERR_CONNECTION_CLOSED)
    return cast(Exception, error.exc_type(error))


class Variable:
    """cursor.var(): takes the value of a block's variable."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind
        self.value: Any = None

    def getvalue(self) -> Any:
        return self.value


class _Base:
    """What both kinds of connection have in common."""

    def __init__(self, server: OracleServer) -> None:
        self.server = server
        try:
            self.session = server.connect()
        except OracleError as error:
            raise driver_error(error.number, str(error)) from None
        self.autocommit = False
        self.call_timeout = 0
        self.module = ""
        self.healthy = True
        self.call_is_open = False

    @property
    def session_id(self) -> int:
        return self.session.sid

    @property
    def transaction_in_progress(self) -> bool:
        return self.session.ended is None and self.session.tables.in_transaction

    @property
    def client_identifier(self) -> str:
        raise AttributeError("client_identifier is not readable")

    @client_identifier.setter
    def client_identifier(self, name: str) -> None:
        self.session.name = name

    def is_healthy(self) -> bool:
        return self.healthy

    def perform(self, text: str, rows: Sequence[Mapping[str, Any]]) -> Any:
        """One round trip. Raises what the real driver would."""
        assert not self.call_is_open, "two calls at one time on a connection"
        if not self.healthy:
            raise connection_closed()
        given = [_checked(text, row) for row in rows]
        try:
            return self.server.carry_out(self.session, text, given, self.autocommit)
        except OracleError as error:
            raised = driver_error(error.number, str(error))
            if raised.args[0].is_session_dead:
                self.healthy = False
            raise raised from None

    def end_transaction(self, how: str) -> None:
        if not self.healthy:
            raise connection_closed()
        if self.session.ended is not None:
            self.healthy = False
            raise driver_error(NOT_LOGGED_ON[0], f"ORA-01012: {NOT_LOGGED_ON[1]}")
        if self.session.tables.in_transaction:
            self.session.tables.execute(how)


class Connection(_Base):
    """An AsyncConnection."""

    def __init__(self, server: OracleServer) -> None:
        super().__init__(server)
        self._waiter: asyncio.Future[None] | None = None
        protocol = asyncio.Protocol()
        oracle_connection._connection_made(protocol, cast(asyncio.Transport, _Transport(self)))

    def cursor(self) -> Cursor:
        return Cursor(self)

    async def rollback(self) -> None:
        await asyncio.sleep(0)
        self.end_transaction("ROLLBACK")

    async def commit(self) -> None:
        await asyncio.sleep(0)
        self.end_transaction("COMMIT")

    async def close(self) -> None:
        self.server.end(self.session)

    async def call(self, text: str, rows: Sequence[Mapping[str, Any]]) -> Any:
        """One round trip; cancelled, the real driver would break the statement at the server."""
        answer = self.perform(text, rows)
        self.call_is_open = True
        try:
            if self.server.calls[-1].name in self.server.stalled:
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.server.breaks += 1
            raise
        finally:
            self.call_is_open = False
        if not self.healthy:
            raise connection_closed()
        return answer

    def lost(self) -> None:
        """asyncio notifies the driver that its transport is gone."""
        self.healthy = False
        self.server.end(self.session)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(connection_closed())


class PlainConnection(_Base):
    """A Connection, without asyncio."""

    def cursor(self) -> PlainCursor:
        return PlainCursor(self)

    def commit(self) -> None:
        self.end_transaction("COMMIT")

    def __enter__(self) -> PlainConnection:
        return self

    def __exit__(self, *exc: object) -> None:
        self.server.end(self.session)


class _Transport:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def abort(self) -> None:
        self._connection.lost()


class _CursorBase:
    def __init__(self) -> None:
        self.prefetchrows, self.arraysize = 2, 100
        self._rows: list[tuple[Any, ...]] = []
        self.description: list[str] | None = None

    def var(self, kind: Any) -> Variable:
        return Variable(kind)

    def _take(self, answer: Any, values: Mapping[str, Any], text: str, fetch_lobs: bool | None) -> None:
        if isinstance(answer, dict):
            for name, value in answer.items():
                if name in values:
                    values[name].value = value
            return
        assert answer is None or fetch_lobs is False or not returns_lobs(text), "this query gives LOB locators"
        self.description = None if answer is None else ["columns"]
        self._rows = answer or []

    def _all(self) -> list[tuple[Any, ...]]:
        rows, self._rows = self._rows, []
        return rows


class Cursor(_CursorBase):
    """An AsyncCursor."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self.connection = connection

    def __enter__(self) -> Cursor:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass

    async def execute(
        self, text: str, values: Mapping[str, Any] | None = None, *, fetch_lobs: bool | None = None
    ) -> None:
        self._take(await self.connection.call(text, [values or {}]), values or {}, text, fetch_lobs)

    async def executemany(self, text: str, rows: Sequence[Mapping[str, Any]]) -> None:
        kinds = [{type(row[name]) for row in rows} - {type(None)} for name in rows[0]]
        assert all(len(kind) <= 1 for kind in kinds), "one type for each column"
        await self.connection.call(text, rows)

    async def fetchall(self) -> list[tuple[Any, ...]]:
        return self._all()

    async def fetchone(self) -> tuple[Any, ...] | None:
        return self._rows.pop(0) if self._rows else None


class PlainCursor(_CursorBase):
    """A Cursor, without asyncio."""

    def __init__(self, connection: PlainConnection) -> None:
        super().__init__()
        self.connection = connection

    def __enter__(self) -> PlainCursor:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def execute(self, text: str, values: Mapping[str, Any] | None = None, *, fetch_lobs: bool | None = None) -> None:
        self._take(self.connection.perform(text, [values or {}]), values or {}, text, fetch_lobs)

    def fetchall(self) -> list[tuple[Any, ...]]:
        return self._all()

    def fetchone(self) -> tuple[Any, ...] | None:
        return self._rows.pop(0) if self._rows else None


def _checked(text: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """The values, if they are exactly those that the statement names and of kinds that the driver binds as we mean."""
    named = set(_PLACEHOLDER.findall(_TEXT.sub("", text)))
    if named != set(row):
        error = errors._create_err(errors.ERR_MISSING_BIND_VALUE, name=str(sorted(named ^ set(row))))
        raise error.exc_type(error)
    plain = {name: value for name, value in row.items() if not isinstance(value, Variable)}
    assert all(type(value) in _KINDS for value in plain.values()), plain
    return plain
