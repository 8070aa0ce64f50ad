"""A Postgres server in memory, for tests and for the simulator. It models only the behaviour that matters to the log.

Commits are visible before the standby has them; notifications get lost; a connection is cut in the middle of a
statement. The reader and the writer over it are the product's own: only `Session` is a double. Plain asyncio, only the
loop's clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, TypeVar

from replica.log.postgres.delivery import Appended, Batch, Bounds, Look
from replica.log.postgres.session import Admit, ServerIdentity
from replica.log.postgres.settings import PostgresLogSettings
from replica.notary.errors import LogRefused, LogUnavailable

APPEND_WAL_BYTES = 100
T = TypeVar("T")


class MemoryWeather:
    """The faults and delays of statements: here, none. A simulator overrides these; all durations are seconds."""

    def way_s(self) -> float:
        """The time of a message to the server, or back."""
        return 0.0

    def commit_s(self) -> float:
        """From the head's lock to the primary's disk."""
        return 0.0

    def replication_s(self) -> float:
        """From there to the standby's disk."""
        return 0.0

    def notify_is_lost(self) -> bool:
        """Whether one session misses the notification of one append."""
        return False

    def batches_shown(self) -> int:
        """How many batches a look shows at most."""
        return 256

    def cut_at(self) -> str | None:
        """Where an append's connection is cut: "before" the server has it, "after" its commit; None: never."""
        return None

    def waits_for_standby(self) -> bool:
        """Whether an append waits for the standby; not where `synchronous_standby_names` was emptied."""
        return True

    def backend_is_ended(self) -> bool:
        """Whether an append's backend is ended while it waits for the standby: its commit is visible at once."""
        return False


class Commit(NamedTuple):
    """A batch, with the WAL position and the loop's time of its commit, which may be long before it is shown."""

    position: int
    at_s: float
    batch: Batch


class MemoryServer:
    """One log on one server, with a synchronous standby."""

    def __init__(
        self, log_id: str = "00000000-0000-0000-0000-000000000001", weather: MemoryWeather | None = None
    ) -> None:
        self.log_id: str | None = log_id  # None: the head's row is gone
        self.identity = ServerIdentity("1", 1)
        self.weather = weather or MemoryWeather()
        self.is_up = True
        self.end_offset = 0
        self.position = 0  # on the server's disk
        self.replicated = 0  # on the standby's
        self.standby_is_up = True
        self.sessions_made = 0
        self.sessions: dict[MemorySession, None] = {}  # ordered, unlike a set: a seed plays the same way every time
        self._commits: list[Commit] = []
        self._head = asyncio.Lock()
        self._standby_moved = asyncio.Event()

    @property
    def batches(self) -> list[Batch]:
        """The batches that every session is shown, oldest first."""
        return [commit.batch for commit in self._commits]

    @property
    def stored_at_s(self) -> list[float]:
        """When each record that is shown was committed, by offset. Offsets are dense where the head is locked."""
        commits = sorted(self._commits, key=lambda commit: commit.batch.first_offset)
        return [commit.at_s for commit in commits for _ in commit.batch.records]

    async def connect(self, _: PostgresLogSettings, admit: Admit) -> MemorySession:
        """A session. Raises LogUnavailable while the server is down, and what `admit` raises."""
        await asyncio.sleep(self.weather.way_s())
        if not self.is_up:
            raise LogUnavailable("the server in memory is down")
        admit(self.identity)
        session = MemorySession(self)
        self.sessions[session] = None
        return session

    def store(self, values: Sequence[bytes]) -> None:
        """Append and commit at once, on both servers."""
        self.commit(self.end_offset, values)
        self.replicate(self.position)

    async def append(self, values: Sequence[bytes], backend: int = 0) -> int:
        """One statement: the head's lock is held until the commit is visible."""
        async with self._head:
            first = self.end_offset
            await asyncio.sleep(self.weather.commit_s())
            commit = self._commit(first, values)
            self._replicate_later(commit.position)
            if self.weather.backend_is_ended():
                self._show(commit, backend)
                raise LogUnavailable("the backend was ended in its wait for the standby")
            while self.replicated < commit.position and self.weather.waits_for_standby():
                await self._standby_moved.wait()
            self._show(commit, backend)
            return first

    def commit(self, first_offset: int, values: Sequence[bytes]) -> None:
        """Write a batch to the disk, and make it visible."""
        self._show(self._commit(first_offset, values))

    def _commit(self, first_offset: int, values: Sequence[bytes]) -> Commit:
        self.position += APPEND_WAL_BYTES
        batch = Batch(first_offset, first_offset + len(values), list(values))
        return Commit(self.position, asyncio.get_running_loop().time(), batch)

    def _show(self, commit: Commit, backend: int = 0) -> None:
        """Make a commit visible, and notify the listeners."""
        self._commits.append(commit)
        self.end_offset = max(self.end_offset, commit.batch.next_offset)
        for session in self.sessions:
            if not self.weather.notify_is_lost() and backend not in session.known:
                session.notified.set()

    def replicate(self, position: int) -> None:
        """The standby has the WAL up to `position` on disk."""
        if self.standby_is_up:
            self.replicated = max(self.replicated, position)
            self._standby_moved.set()
            self._standby_moved = asyncio.Event()

    def promote(self) -> MemoryServer:
        """The standby as the new primary, with only what was replicated. The old primary is dead."""
        promoted = MemoryServer(self.log_id or "", self.weather)
        promoted.identity = ServerIdentity(self.identity.system_identifier, self.identity.timeline + 1)
        promoted._commits = [commit for commit in self._commits if commit.position <= self.replicated]
        promoted.end_offset = max((batch.next_offset for batch in promoted.batches), default=0)
        promoted.position = promoted.replicated = self.replicated
        self.stop()
        return promoted

    def stop(self) -> None:
        """End every session. Connecting fails until `is_up` is set again."""
        self.is_up = False
        for session in tuple(self.sessions):
            session.hang_up()

    def cut_off(self, first_offset: int) -> None:
        """Lose the oldest batches."""
        self._commits = [commit for commit in self._commits if commit.batch.first_offset >= first_offset]

    def recreate(self, log_id: str) -> None:
        """Drop the schema and create it again."""
        self.log_id, self.end_offset, self._commits = log_id, 0, []

    def _replicate_later(self, position: int) -> None:
        if delay_s := self.weather.replication_s():
            asyncio.get_running_loop().call_later(delay_s, self.replicate, position)
        else:
            self.replicate(position)


class MemorySession:
    """A `Session` on a MemoryServer."""

    def __init__(self, server: MemoryServer) -> None:
        self.identity = server.identity
        server.sessions_made += 1
        self.backend = server.sessions_made
        self.known: Collection[int] = ()
        self.notified = asyncio.Event()
        self._woken = asyncio.Event()
        self._server = server
        self._over = asyncio.Event()

    async def violations(self, standbys: int) -> Sequence[str]:
        """See `Session.violations`: none."""
        await self._asked()
        return []

    async def may_harm(self) -> bool:
        """See `Session.may_harm`: nobody may."""
        await self._asked()
        return False

    async def oldest_snapshot(self) -> int | None:
        """See `Session.oldest_snapshot`: there are none."""
        await self._asked()
        return 0

    async def bounds(self, start_offset: int) -> Bounds:
        """See `Session.bounds`."""
        await self._asked()
        server, batches = self._server, self._server.batches
        return await self._answered(
            Bounds(
                self._log_id(),
                server.end_offset,
                server.position,
                min((batch.first_offset for batch in batches), default=None),
                max((batch.next_offset for batch in batches), default=None),
                max((batch.first_offset for batch in batches if batch.first_offset <= start_offset), default=None),
                1 << 24,
            )
        )

    async def look(self, first_batch: int, bytes_max: int, standbys: int, held: bool) -> Look:
        """See `Session.look`."""
        await self._asked()
        server = self._server
        shown = sorted((b for b in server.batches if b.first_offset >= first_batch), key=lambda b: b.first_offset)
        flushed = server.replicated if standbys else server.position
        shown = shown[: server.weather.batches_shown()]
        return await self._answered(Look(self._log_id(), server.end_offset, server.position, flushed, shown))

    async def flushed(self, standbys: int) -> int | None:
        """See `Session.flushed`."""
        await self._asked()
        return await self._answered(self._server.replicated if standbys else self._server.position)

    async def listen(self, known: Collection[int] = ()) -> None:
        """See `Session.listen`."""
        self.known = known
        await self._asked()

    async def heard(self, wait_s: float) -> bool:
        """See `Session.heard`."""
        tasks = [asyncio.create_task(event.wait()) for event in (self.notified, self._woken, self._over)]
        await asyncio.wait(tasks, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        only_woken = self._woken.is_set() and not self.notified.is_set()
        self.notified.clear()
        self._woken.clear()
        self._require_open()
        return not only_woken

    def wake(self) -> None:
        """See `Session.wake`."""
        self._woken.set()

    async def append(self, log_id: str, values: Sequence[bytes], standbys: int) -> Appended:
        """See `Session.append`."""
        cut = self._server.weather.cut_at()
        await self._asked()
        if log_id != self._log_id():
            raise LogRefused(f"there is no head of log {log_id}")
        if cut == "before":
            self.hang_up()
            self._require_open()
        statement = self._begin(values)
        if cut == "after":
            self.hang_up()
        over = asyncio.create_task(self._over.wait())
        either: list[asyncio.Future[Any]] = [statement, over]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        over.cancel()
        statement.add_done_callback(_retrieve)
        self._require_open()
        first, flushed = statement.result(), self._server.replicated if standbys else self._server.position
        return await self._answered(Appended(first, self._server.position, flushed))

    def _begin(self, values: Sequence[bytes]) -> asyncio.Future[int]:
        """The statement in its backend, which continues without its client."""
        return asyncio.ensure_future(self._server.append(values, self.backend))

    async def make_partitions(self) -> None:
        """See `Session.make_partitions`."""
        await self._asked()

    def hang_up(self) -> None:
        """See `Session.hang_up`."""
        self._over.set()
        self._server.sessions.pop(self, None)

    def _log_id(self) -> str:
        if self._server.log_id is None:
            raise LogRefused("notary_log.log_head has no row")
        return self._server.log_id

    async def _asked(self) -> None:
        self._require_open()
        await asyncio.sleep(self._server.weather.way_s())
        self._require_open()

    async def _answered(self, answer: T) -> T:
        await asyncio.sleep(self._server.weather.way_s())
        self._require_open()
        return answer

    def _require_open(self) -> None:
        if self._over.is_set():
            raise LogUnavailable("the connection to the server in memory is over")


def _retrieve(statement: asyncio.Future[int]) -> None:
    """Retrieve a backend's error when its client is gone: nothing may report it."""
    if not statement.cancelled():
        statement.exception()
