"""The store's contract as random calls: the double and another store are asked the same, and answer the same.

Never drawn: an empty text, user, list of parties or mark. There is none, and Oracle takes it for NULL.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, initialize, rule
from msgspec.structs import replace

from ha.clock import SystemClock
from ha.lock.memory import MemoryLockServer, MemoryLockSession
from ha.settings import ElectionSettings
from replica.notary.codes import Code
from replica.notary.errors import InvariantBroken, StoreMismatch, StoreUnavailable
from replica.notary.marks import ContradictedMark, ContradictedMarks
from replica.notary.position import BEGIN
from replica.store.interface import Completion, ParticipantStore, Pruned, Published, Row
from replica.store.memory import MemoryDatabase, MemoryMarks, MemoryReader, MemoryStore
from replica.store.reader import CompletionReader
from tests.contracts.side_by_side import Make, SideBySide
from tests.contracts.store_contract import REJECTED, TOPIC, Ends, NewStore, at, command, completion

PATIENT = ElectionSettings(lease_s=600.0)  # a slow machine ends no session
STATE = b"<a state>"
TEXTS = st.sampled_from(["alice", 'é{}",\\ NULL', "NULL", " a\tb ", "\U0001f600", "x" * 250])
PARTIES = st.lists(st.sampled_from(["CN=A, O=Bank", "{é}", 'CN="B"', "NULL"]), min_size=1, max_size=3).map(tuple)
DETAILS = st.sampled_from([b"", b"\0", STATE, STATE + bytes(range(256))])
MARKS = st.sampled_from([b"\0", b"\xff"])
REPLICAS = st.sampled_from(["r1", "r2", "r3"])
BROKEN = InvariantBroken, InvariantBroken("").code
UNAVAILABLE = StoreUnavailable, Code.STORE_UNAVAILABLE
OFFSETS = st.integers(0, 6)
TIMES_US = st.integers(0, 12)


@st.composite
def attempts(draw: st.DrawFn) -> Completion:
    """A completion but for where it stands in the log, and when: an index after the one before it, and a pause."""
    of = replace(command(draw(OFFSETS)), user_id=draw(TEXTS), act_as=draw(PARTIES), submission_id=draw(TEXTS))
    done = completion(of, draw(st.integers(0, 2)), REJECTED, recorded_us=draw(st.integers(0, 3)), detail=draw(DETAILS))
    period, after = draw(st.none() | OFFSETS), draw(st.none() | OFFSETS)
    notarised = draw(st.none() | OFFSETS)
    return replace(done, notarised_offset=notarised, deduplication_us=period, deduplication_after=after)


RUNS = st.just([]) | st.lists(attempts(), min_size=1, max_size=4)


@dataclass
class LedgerWorld:
    """One database, its stores and a reader."""

    new_store: NewStore
    reader: CompletionReader
    stores: list[ParticipantStore] = field(default_factory=list)

    async def open(self) -> int:
        """One more session as an activation makes it, but that it does not know yet what is published."""
        store = await self.new_store()
        await store.bind(TOPIC)
        self.stores.append(store)
        return len(self.stores) - 1

    async def read(self, after: int, until: int) -> list[Row]:
        """Page by page: a page may be as long as the reader likes."""
        read: list[Row] = []
        while after < until:
            read += await self.reader.read(after, until)
            after = read[-1][0]
        return read

    async def find(self, state: bytes, tx_id: bytes, after: int, until: int) -> list[Row]:
        """As `read`."""
        found: list[Row] = []
        while after < until:
            scan = await self.reader.find_attempts(state, tx_id, after, until)
            found, after = [*found, *scan.rows], scan.scanned_to
        return found


class LedgerMachine(SideBySide[Any]):
    """What every store keeps, one that a replica derives for itself as well: publications go forward there, since it is
    the log that writes. Where ledger offsets leave a gap, what is before it may be gone; no row changes."""

    stores = Bundle("stores")

    def __init__(self, double: Make[Any], other: Make[Any]) -> None:
        super().__init__(double, other)
        self.offset, self.pruned_to = BEGIN, 0  # what is published, and may be gone
        self.rows: list[Row] = []
        self.ledger_end = 0
        self.seen: dict[int, int] = {}  # by store: to where it last found or left it published

    @initialize(target=stores)
    def first(self) -> int:
        return self._open()

    def published(self, store: int) -> None:
        position = None if self.offset == BEGIN else at(self.offset, self.ledger_end)
        self.same(lambda world: world.stores[store].published(), Published(position, self.ledger_end, self.pruned_to))
        self.seen[store] = self.offset

    @rule(
        store=stores,
        asks=st.booleans(),
        step=st.integers(1, 4),
        done=st.just([]) | st.lists(attempts(), min_size=1, max_size=4),
        lost=st.none() | st.tuples(st.integers(0, 4), st.integers(1, 3)),
    )
    def publish(
        self, store: int, asks: bool, step: int, done: Sequence[Completion], lost: tuple[int, int] | None
    ) -> None:
        """Refused whole unless this session last found or left the database where it is. `lost`: after how many of the
        completions so many ledger offsets are of none."""
        if asks:
            self.published(store)
        offset, recorded_us, placed = self.offset + 1, self.rows[-1][1].recorded_us if self.rows else 0, []
        for one in done:
            offset = min(offset + one.log_offset, self.offset + step)
            recorded_us += one.recorded_us
            placed.append(replace(one, log_offset=offset, recorded_us=recorded_us))
        rows, end, pruned_to = self._numbered(placed, lost)
        position = at(self.offset + step, end)
        if self.seen.get(store) == self.offset:
            self.same(lambda world: world.stores[store].publish(rows, position), pruned_to)
            self.rows += rows
            self.ledger_end, self.pruned_to = end, pruned_to
            self.seen[store] = self.offset = position.offset
        else:
            self.same(lambda world: world.stores[store].publish(rows, position), BROKEN)

    def _numbered(self, placed: Sequence[Completion], lost: tuple[int, int] | None) -> tuple[list[Row], int, int]:
        """The rows, the ledger end after them, and up to where completions may be gone."""
        rows, end, pruned_to = [], self.ledger_end, self.pruned_to
        for number in range(len(placed) + 1):
            if lost is not None and number == min(lost[0], len(placed)):
                end = pruned_to = end + lost[1]
            if number < len(placed):
                end += 1
                rows.append((end, placed[number]))
        return rows, end, pruned_to

    @rule(store=stores, up_to=st.none() | OFFSETS, before_us=TIMES_US)
    def prune(self, store: int, up_to: int | None, before_us: int) -> None:
        safe_to = max([self.pruned_to] + [at for at, row in self.kept if row.recorded_us < before_us])
        wanted = safe_to if up_to is None else up_to
        if self.pruned_to < wanted <= safe_to:
            self.pruned_to = wanted
        self.same(lambda world: world.stores[store].prune(up_to, before_us), Pruned(self.pruned_to, safe_to))

    @rule(number=OFFSETS, skipped=OFFSETS, lacking=st.integers(-1, 1))
    def look(self, number: int, skipped: int, lacking: int) -> None:
        """To read what is not there is an error, never the end. Below the bound there may be rows or not."""
        after, until = self.pruned_to + skipped, self.ledger_end + lacking
        rows = [row for row in self.kept if after < row[0] <= until]
        there = rows if lacking <= 0 or after >= until else UNAVAILABLE
        self.same(lambda world: world.read(after, until), there)
        self._search(number)

    def _search(self, number: int) -> None:
        end, tx_id = self.ledger_end, command(number).tx_id
        attempts = [row for row in self.kept if row[1].tx_id == tx_id or STATE in row[1].detail]
        self.same(lambda world: world.find(STATE, tx_id, self.pruned_to, end), attempts)
        first = next((at for at, row in self.kept if row.log_offset >= number), end + 1)
        self.same(lambda world: world.reader.first_at(number, end), first)

    @property
    def kept(self) -> list[Row]:
        """What is not pruned."""
        return [row for row in self.rows if row[0] > self.pruned_to]

    def _open(self) -> int:
        return int(self.same(lambda world: world.open()))


@dataclass
class StoreWorld(LedgerWorld):
    """A database that the replicas share."""

    ends: Ends = field(kw_only=True)
    shared: ContradictedMarks = field(kw_only=True)


class StoreMachine(LedgerMachine):
    """Of a store in a database that the replicas share."""

    stores = Bundle("stores")
    epoch = 0

    @initialize(target=stores)
    def second(self) -> int:
        return self.another()

    @rule(target=stores)
    def another(self) -> int:
        store = self._open()
        self.same(lambda world: world.stores[store].bind("topic-2"), (StoreMismatch, Code.STORE_MISMATCH))
        return store

    @rule(store=stores, step=st.integers(-1, 0))
    def publish_what_is_published(self, store: int, step: int) -> None:
        self.same(lambda world: world.stores[store].publish([], at(self.offset + step, self.ledger_end)), BROKEN)

    @rule(store=stores, step=st.integers(1, 2), done=attempts())
    def publish_again(self, store: int, step: int, done: Completion) -> None:
        """No ledger offset is given twice."""
        self.published(store)
        if self.ledger_end:
            position = at(self.offset + step, self.ledger_end)
            self.same(lambda world: world.stores[store].publish([(self.ledger_end, done)], position), BROKEN)

    @rule(store=stores, above=OFFSETS, replica=REPLICAS)
    def raise_epoch(self, store: int, above: int, replica: str) -> None:
        """No epoch is granted twice."""
        self.epoch = max(self.epoch, above) + 1
        self.same(lambda world: world.stores[store].raise_epoch(above, replica), self.epoch)
        self.same(lambda world: world.ends())

    @rule(store=stores, before=OFFSETS, replica=REPLICAS, reason=TEXTS)
    def end_epoch(self, store: int, before: int, replica: str, reason: str) -> None:
        self.same(lambda world: world.stores[store].end_epoch(self.epoch - before, replica, reason))
        self.same(lambda world: world.ends())

    @rule(store=stores, left=st.builds(ContradictedMark, REPLICAS, MARKS, st.booleans()), leave=st.booleans())
    def change_marks(self, store: int, left: ContradictedMark, leave: bool) -> None:
        self.same(lambda world: (world.shared.leave_mark if leave else world.shared.take_mark_away)(left))
        kept = self.same(lambda world: world.shared.contradicted_marks())
        self.same(lambda world: world.stores[store].contradicted_marks(), kept)


@asynccontextmanager
async def memory_world() -> AsyncIterator[StoreWorld]:
    """The double's."""
    clock, database = SystemClock(), MemoryDatabase()
    server = MemoryLockServer(clock, lease_s=PATIENT.lease_s)

    async def new_store() -> MemoryStore:
        session = MemoryLockSession(server, name="r1", settings=PATIENT, clock=clock)
        await session.open()
        return MemoryStore(session, database)

    async def ends() -> dict[int, tuple[str | None, str | None]]:
        return {epoch: (database.ended.get(epoch), database.found_over.get(epoch)) for epoch, _ in database.grants}

    async def travel() -> None:
        pass

    shared = MemoryMarks(database, travel)
    yield StoreWorld(new_store, MemoryReader(lambda: database), ends=ends, shared=shared)
