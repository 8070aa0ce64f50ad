"""The participant store in memory: a double with the same contract, for tests and the simulator."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from itertools import accumulate
from typing import Protocol, TypeVar

from replica.notary.errors import InvariantBroken
from replica.notary.formats import Formats
from replica.notary.marks import PEERS_MAX, ContradictedMark
from replica.notary.position import Position, offset_of
from replica.store.completions import starts_after, whole_from
from replica.store.desk import DeskSeen, Drawn
from replica.store.interface import Completion, Pruned, Published, Row
from replica.store.reader import PAGE_DETAIL_BYTES, WINDOW_DETAIL_BYTES, Scan, check_dense
from replica.store.schema import check_bound

_T = TypeVar("_T")


class MemoryDatabase:
    """The tables. Every method is one transaction: it takes effect whole or raises before it changes anything."""

    def __init__(self) -> None:
        self.topic_id: str | None = None
        self.formats = Formats()
        self.epoch = 0
        self.grants: list[tuple[int, str]] = []
        self.ended: dict[int, str] = {}  # epoch: the reason that its holder recorded
        self.found_over: dict[int, str] = {}  # epoch: the replica that found it ended without a recorded reason
        self.position: Position | None = None
        self.completions: list[tuple[int, Completion]] = []
        self.pruned_to = 0
        self.service_paused = False
        self.contradicted: dict[str, ContradictedMark] = {}  # by replica
        self.drawn = 0  # ranges of sequence numbers that were given away

    def bind(self, topic_id: str, salvages: Collection[str] = ()) -> Formats:
        """See ParticipantStore."""
        if self.topic_id is None:
            self.topic_id = topic_id
        check_bound(self.topic_id, topic_id, salvages)
        return self.formats

    def raise_epoch(self, above: int, replica: str) -> int:
        """See ParticipantStore."""
        for epoch, _ in self.grants:
            if epoch not in self.ended:
                self.found_over.setdefault(epoch, replica)
        self.epoch = max(self.epoch, above) + 1
        self.grants.append((self.epoch, replica))
        return self.epoch

    def end_epoch(self, epoch: int, replica: str, reason: str) -> None:
        """See ParticipantStore."""
        if (epoch, replica) in self.grants:
            self.ended.setdefault(epoch, reason)

    def published(self) -> Published:
        """See ParticipantStore."""
        return Published(self.position, self.ledger_end, self.pruned_to)

    def publish(self, completions: Sequence[Row], position: Position, after_offset: int) -> int:
        """See ParticipantStore. `after_offset`: to where the session believes that completions are published."""
        ledger_end = position.ledger_offset
        if offset_of(self.position) != after_offset or self.ledger_end > starts_after(completions, ledger_end):
            raise InvariantBroken(f"completions do not go on from offset {after_offset} any more")
        if self.ledger_end < (start := whole_from(completions, ledger_end)):
            self.pruned_to = start
        self.position = position
        self.completions.extend(completions)
        return self.pruned_to

    @property
    def ledger_end(self) -> int:
        """The newest ledger offset."""
        return 0 if self.position is None else self.position.ledger_offset

    def prune(self, up_to: int | None, recorded_before_us: int) -> Pruned:
        """See ParticipantStore. The rows stay, but readers must act as if they were gone."""
        old = [at for at, completion in self.completions if completion.recorded_us < recorded_before_us]
        safe_to = old[-1] if old else 0
        wanted = safe_to if up_to is None else up_to
        if self.pruned_to < wanted <= safe_to:
            self.pruned_to = wanted
        return Pruned(self.pruned_to, max(self.pruned_to, safe_to))

    def contradicted_marks(self) -> list[ContradictedMark]:
        """See ContradictedMarks."""
        return [left for _, left in sorted(self.contradicted.items())][:PEERS_MAX]


class MemoryServerConnection(Protocol):
    """Runs a function at the server, if the session is still alive there."""

    async def run(self, action: Callable[[], _T]) -> _T:
        """The function's result; raises what the session raises when the answer is lost."""


class MemoryDesk:
    """See Desk. `travel` may raise what a network does; `identity` names the database as in a barrier."""

    def __init__(
        self,
        database: MemoryDatabase,
        identity: Callable[[], str],
        wall_us: Callable[[], int],
        travel: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._database = database
        self._identity = identity
        self._wall_us = wall_us
        self._travel = travel

    async def look(self) -> DeskSeen:
        """See Desk."""
        await self._go()
        database = self._database
        return DeskSeen(self._wall_us(), database.position, database.ledger_end, database.pruned_to)

    async def draw(self) -> Drawn:
        """See Desk."""
        await self._go()
        self._database.drawn += 1
        return Drawn(self._database.drawn, self._identity())

    async def _go(self) -> None:
        if self._travel is not None:
            await self._travel()


class MemoryMarks:
    """See ContradictedMarks. `travel` may raise what a network does."""

    def __init__(self, database: MemoryDatabase, travel: Callable[[], Awaitable[None]]) -> None:
        self._database = database
        self._travel = travel

    async def contradicted_marks(self) -> list[ContradictedMark]:
        """See ContradictedMarks."""
        await self._travel()
        return self._database.contradicted_marks()

    async def leave_mark(self, left: ContradictedMark) -> None:
        """See ContradictedMarks."""
        await self._travel()
        self._database.contradicted[left.replica] = left

    async def take_mark_away(self, left: ContradictedMark) -> None:
        """See ContradictedMarks."""
        await self._travel()
        if self._database.contradicted.get(left.replica) == left:
            del self._database.contradicted[left.replica]


class MemorySession(Protocol):
    """The lock session as far as this double needs it."""

    def statement(self, name: str) -> AbstractAsyncContextManager[MemoryServerConnection]:
        """The connection for one statement."""


class MemoryStore:
    """See ParticipantStore: the tables, reached through the lock session's double."""

    def __init__(self, session: MemorySession, database: MemoryDatabase) -> None:
        self._session = session
        self._database = database
        self._published_offset: int | None = None  # None until it was asked for

    async def bind(self, topic_id: str, salvages: Collection[str] = ()) -> Formats:
        """See ParticipantStore."""
        return await self._run("bind_topic", lambda: self._database.bind(topic_id, salvages))

    async def raise_epoch(self, above: int, replica: str) -> int:
        """See ParticipantStore."""
        return await self._run("raise_epoch", lambda: self._database.raise_epoch(above, replica))

    async def service_paused(self) -> bool:
        """See ParticipantStore."""
        return await self._run("service_paused", lambda: self._database.service_paused)

    async def contradicted_marks(self) -> list[ContradictedMark]:
        """See ParticipantStore."""
        return await self._run("contradicted_marks", self._database.contradicted_marks)

    async def end_epoch(self, epoch: int, replica: str, reason: str) -> None:
        """See ParticipantStore."""
        await self._run("end_epoch", lambda: self._database.end_epoch(epoch, replica, reason))

    async def published(self) -> Published:
        """See ParticipantStore."""
        found = await self._run("published", self._database.published)
        self._published_offset = offset_of(found.position)
        return found

    async def publish(self, completions: Sequence[Row], position: Position) -> int:
        """See ParticipantStore."""
        after = self._published_offset
        if after is None or position.offset <= after:
            raise InvariantBroken(f"completions to offset {position.offset} do not go on from {after}")
        pruned_to = await self._run("publish", lambda: self._database.publish(completions, position, after))
        self._published_offset = position.offset
        return pruned_to

    async def prune(self, up_to: int | None, recorded_before_us: int) -> Pruned:
        """See ParticipantStore."""
        return await self._run("prune", lambda: self._database.prune(up_to, recorded_before_us))

    async def _run(self, name: str, action: Callable[[], _T]) -> _T:
        async with self._session.statement(name) as connection:
            return await connection.run(action)


class MemoryReader:
    """See CompletionReader: reads the tables that `find` gives, after `travel`, which may raise network errors."""

    def __init__(
        self,
        find: Callable[[], MemoryDatabase],
        travel: Callable[[], Awaitable[None]] | None = None,
        page_rows: int = 7,
    ) -> None:
        self._find = find
        self._travel = travel
        self._page_rows = page_rows
        self._database: MemoryDatabase | None = None

    async def read(self, after: int, until: int, bytes_max: int = PAGE_DETAIL_BYTES) -> Sequence[Row]:
        """See CompletionReader."""
        until = min(until, after + self._page_rows)
        return check_dense(_fitting(await self._kept(after, until), bytes_max), after, until)

    async def first_at(self, log_offset: int, ledger_end: int) -> int:
        """See CompletionReader."""
        kept = await self._kept(0, ledger_end)
        return next((at for at, completion in kept if completion.log_offset >= log_offset), ledger_end + 1)

    async def find_attempts(self, state: bytes, tx_id: bytes, after: int, until: int) -> Scan:
        """See CompletionReader."""
        until = min(until, after + self._page_rows)
        found = [row for row in await self._kept(after, until) if row[1].tx_id == tx_id or state in row[1].detail]
        fitting = _fitting(found, WINDOW_DETAIL_BYTES)
        return Scan(fitting, until if len(fitting) == len(found) else fitting[-1][0])

    async def reset(self) -> None:
        """See CompletionReader."""
        self._database = None

    async def close(self) -> None:
        """See CompletionReader."""
        self._database = None

    async def _kept(self, after: int, until: int) -> list[Row]:
        if self._travel is not None:
            await self._travel()
        self._database = database = self._database or self._find()
        low = max(after, database.pruned_to)
        return [row for row in database.completions if low < row[0] <= until]


def _fitting(rows: list[Row], bytes_max: int) -> list[Row]:
    """The first rows, as many as have less than `bytes_max` bytes before the last one."""
    before = accumulate((len(completion.detail) for _, completion in rows), initial=0)
    return [row for row, bytes_before in zip(rows, before, strict=False) if bytes_before < bytes_max]
