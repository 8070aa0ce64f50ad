"""A connection to Oracle through python-oracledb's thin asyncio mode that never cancels a statement.

The driver answers a cancelled task, and its own call_timeout, with a break: the server abandons the statement. A write
on the lock session must either complete at the server or fail with the session. So each call to the driver runs in a
task of its own that is never cancelled; a caller that stops waiting closes the socket.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar

import oracledb
from oracledb import thin_impl  # type: ignore[attr-defined]

from ha.errors import LockUnavailable
from ha.invariant import InvariantBroken

T = TypeVar("T")

FETCH_ROWS = 1_000  # rows of an answer that are fetched together
_transports: ContextVar[list[asyncio.Transport] | None] = ContextVar("oracle_transports", default=None)


def _connection_made(protocol: asyncio.BaseProtocol, transport: asyncio.Transport) -> None:
    """What asyncio calls with a new transport; the driver leaves it to its base class, which does nothing."""
    made = _transports.get()
    if made is not None:
        made.append(transport)


# The driver keeps its transport to itself, and offers no way to close a connection that is waiting for an answer.
thin_impl.AsyncProtocol.connection_made = _connection_made


class OracleConnection:
    """One dedicated connection. What the driver raises passes through; a cancelled caller costs the connection."""

    def __init__(self, driver: oracledb.AsyncConnection, transports: Sequence[asyncio.Transport]) -> None:
        self.answers = 0  # of the server on this connection, errors not counted
        self._driver = driver
        self._transports = transports
        self._running: asyncio.Task[Any] | None = None

    @classmethod
    async def connect(cls, parameters: Mapping[str, Any]) -> OracleConnection:
        """Connect. Raises LockUnavailable, never the driver's errors. If cancelled, it leaves no open socket."""
        made: list[asyncio.Transport] = []
        _transports.set(made)
        task = asyncio.ensure_future(_connect(parameters))
        try:
            driver = await asyncio.shield(task)
        except oracledb.Error as error:
            raise LockUnavailable(str(error).strip()) from error
        except BaseException:
            _abort(made)
            task.add_done_callback(_take_error)
            raise
        finally:
            _transports.set(None)
        if not made:
            task.add_done_callback(_take_error)
            raise InvariantBroken("python-oracledb did not show its transport: this version of it cannot be used")
        return cls(driver, made)

    @property
    def session_id(self) -> int:
        """The session's SID as the protocol reported it at log-in."""
        return int(self._driver.session_id)

    def introduce(self, name: str, module: str) -> None:
        """Put a name where the server's views show it; travels with the next statement."""
        self._driver.client_identifier = name
        self._driver.module = module

    async def rows(self, text: str, values: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """All rows of a query; LOBs as bytes or text."""

        async def query() -> list[tuple[Any, ...]]:
            with self._driver.cursor() as cursor:
                cursor.prefetchrows = cursor.arraysize = FETCH_ROWS
                self._driver.autocommit = False  # a commit would unlock the rows that a query has locked
                await cursor.execute(text, dict(values or {}), fetch_lobs=False)
                rows: list[tuple[Any, ...]] = await cursor.fetchall()
                return rows

        return await self._carry_out(query())

    async def run(
        self, text: str, values: Mapping[str, Any], *, out: Mapping[str, Any] | None = None, commit: bool = False
    ) -> dict[str, Any]:
        """Run a statement that is no query, or a block; the values of `out`, by name, None where no row was touched.

        `out` gives the type of each. `commit`: in the same round trip, if the statement succeeds.
        """

        async def execute() -> dict[str, Any]:
            with self._driver.cursor() as cursor:
                variables = {name: cursor.var(kind) for name, kind in (out or {}).items()}
                self._driver.autocommit = commit
                await cursor.execute(text, {**values, **variables})
                return {name: _value_of(variable) for name, variable in variables.items()}

        return await self._carry_out(execute())

    async def run_many(self, text: str, rows: Sequence[Mapping[str, Any]], *, commit: bool = False) -> None:
        """Run a statement once for each row of values, in one round trip. `commit`: in the same one, if all succeed."""

        async def execute() -> None:
            with self._driver.cursor() as cursor:
                self._driver.autocommit = commit
                await cursor.executemany(text, [dict(row) for row in rows])

        await self._carry_out(execute())

    async def rollback(self) -> None:
        """Undo what is not committed. No-op if there is nothing, or if the session is gone, which undid it."""
        if self._driver.is_healthy() and self._driver.transaction_in_progress:
            await self._carry_out(self._driver.rollback())

    def settled(self) -> bool:
        """No statement and no transaction is open, and the connection works."""
        return self._running is None and self._driver.is_healthy() and not self._driver.transaction_in_progress

    def hang_up(self) -> None:
        """Close the socket now; the driver fails the task that waits on it."""
        _abort(self._transports)

    def finish(self) -> None:
        """Close the socket now. May be repeated."""
        _abort(self._transports)

    async def _carry_out(self, call: Coroutine[Any, Any, T]) -> T:
        task = asyncio.ensure_future(call)
        self._running = task
        try:
            answer = await asyncio.shield(task)
        except asyncio.CancelledError:
            self.hang_up()
            task.add_done_callback(_take_error)
            raise
        finally:
            if task.done():
                self._running = None
        self.answers += 1
        return answer


async def _connect(parameters: Mapping[str, Any]) -> oracledb.AsyncConnection:
    driver: oracledb.AsyncConnection = await oracledb.connect_async(**parameters)
    return driver


def _abort(transports: Sequence[asyncio.Transport]) -> None:
    for transport in transports:
        transport.abort()


def _take_error(task: asyncio.Task[Any]) -> None:
    """No caller waits for this task any more."""
    if not task.cancelled():
        task.exception()


def _value_of(variable: oracledb.Var) -> Any:
    value = variable.getvalue()
    if isinstance(value, list):  # of a RETURNING clause: one for each row
        return value[0] if value else None
    return value
