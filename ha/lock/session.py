"""What the lock sessions on real databases have in common: turns, deadlines, heartbeats and closing.

Each kind of database adds how to connect, the checks, its questions about the lock, and which errors leave the outcome
unknown.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar, Generic, Protocol, TypeVar

from ha.clock import Clock
from ha.errors import HaError, LockLost, LockUnavailable, ReadOnlyServer, reason_of
from ha.invariant import InvariantBroken
from ha.lock.deadline import answered_within
from ha.lock.interface import CLOSED, NEVER_S, Grant, ReleaseNote
from ha.settings import ElectionSettings

OPEN_MAX_S = 10.0  # name look-up, every host of the list, and the checks


class Connection(Protocol):
    """One connection to the database, as far as the session needs it."""

    answers: int
    """Answers of the server on this connection, errors not counted."""

    def settled(self) -> bool:
        """No statement and no transaction is open, and the connection works."""

    def hang_up(self) -> None:
        """End the connection at once even if a task waits for an answer on it; that task fails."""

    def finish(self) -> None:
        """End the connection at once; nobody is waiting on it. May be repeated."""


ConnectionT = TypeVar("ConnectionT", bound=Connection)


class DatabaseSession(ABC, Generic[ConnectionT]):
    """See LockSession. One object is one session: open it once, make another when it is closed."""

    unavailable: ClassVar[type[LockUnavailable]] = LockUnavailable  # with the remedy of what keeps the lock

    def __init__(self, *, name: str, settings: ElectionSettings, clock: Clock) -> None:
        self._name = name
        self._settings = settings
        self._clock = clock
        self._connection: ConnectionT | None = None
        self._turn = asyncio.Lock()  # asyncio's lock is first come, first served
        self._closed = asyncio.Event()
        self._why = CLOSED
        self._notes: asyncio.Queue[ReleaseNote] = asyncio.Queue(maxsize=1)
        self._answered_at_s = NEVER_S
        self._skew_s = 0.0

    @abstractmethod
    async def _connect(self) -> ConnectionT:
        """A new connection. Raises LockUnavailable if none can be made."""

    @abstractmethod
    async def _check(self) -> None:
        """Everything that `LockSession.open` promises about the connection."""

    @abstractmethod
    def _is_unknown(self, error: BaseException) -> bool:
        """Whether the outcome of the statement that raised this is unknown, or the connection broken."""

    def _listen(self, connection: ConnectionT) -> None:
        """Receive what the server sends unasked, until `_stop_listening`; no statement runs meanwhile."""

    def _stop_listening(self, connection: ConnectionT) -> None:
        """A statement needs the connection, or it is about to be closed. May be repeated."""

    @property
    def name(self) -> str:
        """See LockSession."""
        return self._name

    @property
    def answered_at_s(self) -> float:
        """See LockSession."""
        return self._answered_at_s

    @property
    def closed(self) -> bool:
        """See LockSession."""
        return self._closed.is_set()

    @property
    def grant(self) -> Grant | None:
        """See LockSession: the holder of a lock in a database opens its activation by itself."""
        return None

    @property
    def clock_skew_s(self) -> float:
        """See LockSession."""
        return self._skew_s

    async def open(self) -> None:
        """See LockSession."""
        if self._connection is not None:
            raise InvariantBroken("a lock session is opened once")
        try:
            async with asyncio.timeout(OPEN_MAX_S):
                self._connection = await self._connect()
                if self.closed:
                    self._connection.finish()
                    raise LockLost("the session was closed while it was being opened")
                await self._check()
        except BaseException as error:
            self._shut()
            if isinstance(error, TimeoutError | LockLost) and not isinstance(error, ReadOnlyServer):
                why = error.detail if isinstance(error, LockLost) else "no answer in time"
                raise self.unavailable(f"no session was opened: {why}") from error
            raise

    async def close(self, why: str = CLOSED) -> None:
        """See LockSession."""
        self._lose(why)

    async def wait_closed(self) -> str:
        """See LockSession."""
        await self._closed.wait()
        return self._why

    async def wait_release(self) -> ReleaseNote:
        """See LockSession."""
        return await self._notes.get()

    @asynccontextmanager
    async def statement(self, name: str) -> AsyncIterator[ConnectionT]:
        """See WriteSession."""
        async with self._turn:
            if self._connection is None or self.closed:
                raise LockLost(f"{name}: the session is closed")
            connection = self._connection
            sent_at_s, answers_before = self._clock.boottime_s(), connection.answers
            self._stop_listening(connection)
            try:
                async with answered_within(self._settings.answer_max_s):
                    yield connection
            except BaseException as error:
                self._judge(name, connection, error)
                raise
            else:
                if not connection.settled():
                    raise self._lose(f"{name}: a statement or transaction was left open")
                if connection.answers > answers_before:
                    self._answered_at_s = max(self._answered_at_s, sent_at_s)
            finally:
                if self.closed:
                    connection.finish()
                else:
                    self._listen(connection)

    def _judge(self, name: str, connection: ConnectionT, error: BaseException) -> None:
        """Judge an error in a statement: return if it is a definite answer or ours; else close and raise LockLost."""
        broken = isinstance(error, TimeoutError) or self._is_unknown(error) or not connection.settled()
        if not broken:
            return
        if isinstance(error, HaError) or not isinstance(error, Exception):
            self._lose(f"{name}: {reason_of(error)}")  # our own error, or a cancelled task:
            return  # its exception is not changed
        raise self._lose(f"{name}: {reason_of(error)}") from error

    def _note_clock(self, before_us: int, database_us: int, after_us: int) -> None:
        """Compare clocks: ours before a question and after its answer, the database's in between."""
        self._skew_s = clock_skew_s(before_us, database_us, after_us)

    def _refuse_read_only(self, read_only: bool) -> None:
        if read_only:
            self._lose("the session is read-only")
            raise ReadOnlyServer("the session is read-only")

    def _tell_release(self, note: ReleaseNote) -> None:
        """Wake `wait_release`; of several notes only the newest matters."""
        if self._notes.full():
            self._notes.get_nowait()
        self._notes.put_nowait(note)

    def _lose(self, reason: str) -> LockLost:
        """Close for this reason; the first reason counts. Returns the error to raise."""
        if not self.closed:
            self._why = reason
        self._shut()
        return LockLost(reason)

    def _shut(self) -> None:
        """Close: now if no task waits on the connection, else as soon as that task has left (see `statement`)."""
        self._closed.set()
        if self._connection is None:
            return
        if self._turn.locked():
            self._connection.hang_up()
        else:
            self._stop_listening(self._connection)
            self._connection.finish()


def clock_skew_s(before_us: int, database_us: int, after_us: int) -> float:
    """Seconds that our clock is at least ahead of the database's (lags, if negative), whatever the round trip took.

    Wall clocks in microseconds: ours before the question was sent and after it was answered, the database's between.
    """
    offset_us = (before_us + after_us) / 2 - database_us
    certain_us = max(0.0, abs(offset_us) - abs(after_us - before_us) / 2)
    return (certain_us if offset_us > 0 else -certain_us) / 1e6
