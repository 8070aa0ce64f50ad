"""The lock session in memory: a double for tests and simulation with the whole contract, lease included.

`MemoryLockServer` is the database: it outlives its clients, counts leases on its own clock and can kill sessions.
`Network` is what lies between: requests and answers may be late, lost, or never come.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from ha.clock import Clock
from ha.errors import (
    HaError,
    LockLost,
    LockUnavailable,
    PoolerDetected,
    ReadOnlyServer,
    ScopeMismatch,
    UnsafeCommitMode,
    reason_of,
)
from ha.invariant import InvariantBroken
from ha.lock.interface import (
    CLOSED,
    NEVER_S,
    RELEASE_LEAD_S,
    DatabaseIdentity,
    Grant,
    LockAnswer,
    LockOwner,
    LockView,
    ReleaseNote,
    ServerLease,
)
from ha.lock.session import clock_skew_s
from ha.settings import ElectionSettings

T = TypeVar("T")


class ConnectionGone(Exception):
    """The server does not know the session any more, or the network broke it."""


class Network:
    """A perfect network. Subclasses wait (late), raise ConnectionGone (broken), or wait for ever (lost)."""

    async def request(self, session: str, statement: str) -> None:
        """The statement travels to the server."""

    async def answer(self, session: str, statement: str) -> None:
        """The answer travels back; the statement was carried out."""

    def hears_close(self, session: str) -> bool:
        """Whether the server learns that the client closed; if not, only the lease ends the session."""
        return True

    def hears_note(self, session: str) -> bool:
        """Whether the client is reached by what another session announces."""
        return True


@dataclass(slots=True)
class _Backend:
    """One session at the server."""

    name: str
    idle_since_s: float
    hear: Callable[[ReleaseNote], None] | None = None


class MemoryLockServer:
    """One database with one lock. Faults are switched on by setting attributes."""

    def __init__(self, clock: Clock, *, lease_s: float, database: str = "notary") -> None:
        self.network = Network()
        self.database = database
        self.accepts = True
        self.read_only = False
        self.pooled = False
        self.commits_durably = True
        self.clock_ahead_us = 0
        self.identity = DatabaseIdentity("memory", "memory", 1)
        self.released: ReleaseNote | None = None  # the newest note
        self.releases = 0  # how often the lock was given up on purpose
        self._clock = clock
        self._lease_s = lease_s
        self._backends: dict[int, _Backend] = {}
        self._holder: int | None = None
        self._last_pid = 0

    async def exchange(self, name: str, pid: int, statement: str, action: Callable[[], T]) -> T:
        """A statement goes to the server, is carried out there, and its answer comes back."""
        await self.network.request(name, statement)
        try:
            return self.carry_out(pid, action)
        finally:
            await self.network.answer(name, statement)

    def client_closed(self, name: str, pid: int) -> None:
        """The client closed its end of the session."""
        if self.network.hears_close(name):
            self.end(pid)

    def connect(self, name: str) -> int:
        """A new session; its number is never used again. Raises ConnectionGone while the server is down."""
        if not self.accepts:
            raise ConnectionGone("connection refused")
        self._last_pid += 1
        self._backends[self._last_pid] = _Backend(name, self._clock.boottime_s())
        return self._last_pid

    def carry_out(self, pid: int, action: Callable[[], T]) -> T:
        """Run `action` in one atomic step if the session is alive. Raises ConnectionGone if it is not."""
        self._expire()
        if pid not in self._backends:
            raise ConnectionGone(f"session {pid} does not exist")
        self._backends[pid].idle_since_s = self._clock.boottime_s()
        return action()

    def try_lock(self, pid: int) -> bool:
        """Take the lock for `pid` if it is free."""
        if self._holder is None:
            self._holder = pid
        return self._holder == pid

    def listen(self, pid: int, hear: Callable[[ReleaseNote], None]) -> None:
        """Call `hear` with every release that other sessions announce."""
        self._backends[pid].hear = hear

    def announce(self, pid: int, note: ReleaseNote) -> None:
        """Send a release note to every other session; a note may get lost on its way."""
        for other, backend in self._backends.items():
            if other != pid and backend.hear is not None and self.network.hears_note(backend.name):
                backend.hear(note)

    def unlock(self, pid: int, note: ReleaseNote) -> None:
        """Free the lock on purpose, if `pid` has it."""
        if self._holder == pid:
            self._holder = None
            self.releases += 1
            self.released = note
            self.announce(pid, note)

    def owner(self) -> LockOwner | None:
        """Who holds the lock now."""
        self._expire()
        return None if self._holder is None else LockOwner(self._holder, self._backends[self._holder].name)

    def end(self, pid: int) -> None:
        """End a session: its client closed it, or an administrator killed it. Its lock is free at once."""
        self._backends.pop(pid, None)
        if self._holder == pid:
            self._holder = None

    def end_all(self) -> None:
        """Restart: every session is gone, and the lock with them."""
        for pid in list(self._backends):
            self.end(pid)

    def wall_us(self) -> int:
        """The database's wall clock."""
        return self._clock.wall_us() + self.clock_ahead_us

    def _expire(self) -> None:
        now_s = self._clock.boottime_s()
        for pid, backend in list(self._backends.items()):
            if now_s - backend.idle_since_s >= self._lease_s:
                self.end(pid)


class MemoryConnection:
    """What `statement` yields: runs steps at the server, in the session that holds the lock."""

    def __init__(self, server: MemoryLockServer, name: str, pid: int) -> None:
        self.answers = 0
        self.pid = pid
        self.statement = ""
        self._server = server
        self._name = name

    async def run(self, action: Callable[[], T]) -> T:
        """Carry out `action` at the server as one atomic step of this session. What it raises is an answer, too."""
        try:
            return await self._server.exchange(self._name, self.pid, self.statement, action)
        finally:
            self.answers += 1


class MemoryLockSession:
    """A WriteSession of MemoryConnection."""

    def __init__(
        self, server: MemoryLockServer, *, name: str, settings: ElectionSettings, clock: Clock, scope: str = "notary"
    ) -> None:
        self._server = server
        self._scope = scope
        self._name = name
        self._settings = settings
        self._clock = clock
        self._connection: MemoryConnection | None = None
        self._turn = asyncio.Lock()
        self._closed = asyncio.Event()
        self._why = CLOSED
        self._deadline: asyncio.Timeout | None = None
        self._answered_at_s = NEVER_S
        self._skew_s = 0.0
        self._granted = False
        self._releases_over = server.releases
        self._notes: asyncio.Queue[ReleaseNote] = asyncio.Queue(maxsize=1)

    @property
    def name(self) -> str:
        return self._name

    @property
    def answered_at_s(self) -> float:
        return self._answered_at_s

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    @property
    def grant(self) -> Grant | None:
        return None

    @property
    def clock_skew_s(self) -> float:
        return self._skew_s

    @property
    def server_lease(self) -> ServerLease:
        return ServerLease(self._settings.lease_s, True, "the double's lease")

    async def open(self) -> None:
        if self._connection is not None:
            raise InvariantBroken("a lock session is opened once")
        try:
            pid = self._server.connect(self._name)
            self._connection = MemoryConnection(self._server, self._name, pid)
            self._server.listen(pid, self._note_release)
            async with self.statement("lock.check") as connection:
                await self._ask(connection, self._check)
        except ConnectionGone as error:
            self._shut()
            raise LockUnavailable(f"cannot connect as {self._name}: {error}") from error
        except ReadOnlyServer:
            raise
        except LockLost as error:
            raise LockUnavailable(f"no session was opened: {error.detail}") from error
        except BaseException:
            self._shut()
            raise

    def _check(self) -> None:
        server = self._server
        if server.database != self._scope:
            raise ScopeMismatch(
                f"the configured scope is {self._scope!r}, the server's database is {server.database!r}"
            )
        if server.pooled:
            raise PoolerDetected("the session is shared")
        if not server.commits_durably:
            raise UnsafeCommitMode("the session commits asynchronously")

    async def try_lock(self) -> LockAnswer:
        if self._granted:
            raise InvariantBroken("the lock is re-entrant: a second grant would need a second unlock")
        asked_at_s = self._clock.boottime_s()
        async with self.statement("lock.try") as connection:
            self._granted = await self._ask(connection, lambda: self._server.try_lock(connection.pid))
        if self._granted:
            return LockAnswer(True, asked_at_s, released=self._news())
        return LockAnswer(False, asked_at_s, await self._owner("lock.try"))

    async def look(self) -> LockView:
        owner = await self._owner("lock.look")
        return LockView(owner, self._news() if owner is None else None)

    def _news(self) -> ReleaseNote | None:
        return self._server.released if self._server.releases > self._releases_over else None

    async def _owner(self, name: str) -> LockOwner | None:
        async with self.statement(name) as connection:
            owner, releases = await self._ask(connection, lambda: (self._server.owner(), self._server.releases))
        if owner is not None:
            self._releases_over = releases
        return owner

    async def confirm(self) -> float:
        async with self.statement("lock.confirm") as connection:
            asked_at_s = self._clock.boottime_s()
            owner = await self._ask(connection, self._server.owner)
            if owner is None or owner.pid != connection.pid:
                raise self._lose("the server says that this session does not hold the lock")
        return asked_at_s

    async def release(self, to: str | None = None) -> None:
        note = ReleaseNote(self._name, to)
        if to is not None:
            async with self.statement("lock.announce") as connection:
                await self._ask(connection, lambda: self._server.announce(connection.pid, note))
            await self._clock.sleep_s(RELEASE_LEAD_S)
        async with self.statement("lock.release") as connection:
            await self._ask(connection, lambda: self._server.unlock(connection.pid, note))

    async def wait_release(self) -> ReleaseNote:
        return await self._notes.get()

    def _note_release(self, note: ReleaseNote) -> None:
        if self._notes.full():  # only the newest matters
            self._notes.get_nowait()
        self._notes.put_nowait(note)

    async def close(self, why: str = CLOSED) -> None:
        self._lose(why)

    async def wait_closed(self) -> str:
        await self._closed.wait()
        return self._why

    async def database_identity(self) -> DatabaseIdentity:
        async with self.statement("lock.identity") as connection:
            return await self._ask(connection, lambda: self._server.identity)

    @asynccontextmanager
    async def statement(self, name: str) -> AsyncIterator[MemoryConnection]:
        async with self._turn:
            if self._connection is None or self.closed:
                raise LockLost(f"{name}: the session is closed")
            connection = self._connection
            connection.statement = name
            sent_at_s, answers_before = self._clock.boottime_s(), connection.answers
            try:
                async with asyncio.timeout(self._settings.answer_max_s) as deadline:
                    self._deadline = deadline
                    try:
                        yield connection
                    finally:
                        self._deadline = None
            except (ConnectionGone, TimeoutError) as error:
                raise self._lose(f"{name}: {reason_of(error)}") from error
            except (asyncio.CancelledError, GeneratorExit) as error:
                self._lose(f"{name}: {type(error).__name__}")
                raise
            if connection.answers > answers_before:
                self._answered_at_s = max(self._answered_at_s, sent_at_s)

    async def _ask(self, connection: MemoryConnection, question: Callable[[], T]) -> T:
        """Ask something about the lock, and compare clocks by the way."""
        before_us = self._clock.wall_us()
        try:
            answer, wall_us = await connection.run(lambda: (question(), self._server.wall_us()))
        except HaError as error:
            self._lose(reason_of(error))
            raise
        after_us = self._clock.wall_us()
        self._skew_s = clock_skew_s(before_us, wall_us, after_us)
        if self._server.read_only:
            self._lose("the session is read-only")
            raise ReadOnlyServer("the session is read-only")
        return answer

    def _lose(self, reason: str) -> LockLost:
        if not self.closed:
            self._why = reason
        self._shut()
        return LockLost(reason)

    def _shut(self) -> None:
        self._closed.set()
        if self._deadline is not None and not self._deadline.expired():  # wakes the task that waits for an answer
            self._deadline.reschedule(asyncio.get_running_loop().time())
        if self._connection is not None:
            self._server.client_closed(self._name, self._connection.pid)
