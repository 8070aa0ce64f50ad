"""The ledger that a replica derives: fed, caught up and made anew, it always has what the log decided. Real files."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from ha.clock import SystemClock
from replica.active.completions import completions_of
from replica.active.derived_ledger import DerivedLedger, _Meanwhile
from replica.following.apply import Applier
from replica.index.memory import MemoryIndex
from replica.log.interface import LogRecords
from replica.log.memory import MemoryLog, MemoryReader, MemoryTopic
from replica.notary.errors import LogRefused, LogTruncated, StoreUnavailable
from replica.notary.formats import Formats
from replica.settings import CoreSettings
from replica.store.interface import Row
from replica.store.sqlite.file import LedgerFile
from replica.store.sqlite.reader import SqliteReader
from replica.store.sqlite.store import EmbeddedStore
from replica.store.sqlite.tables import FILE
from tests.worlds.checker_world import good_world

TOPIC = "memory-1"
LIFE_MAX_S = 120.0  # a story that hangs ends; a slow disk does not end it
# Many reads, and many runs in each: far below what may be configured.
SETTINGS = CoreSettings(read_batch_max=40, log_retry_s=0.01).model_copy(update={"read_batch_states_max": 20})
WORLD = good_world(4, steps=600)


class BusyReader(MemoryReader):
    """The follower applies records during each read of the ledger's own reader."""

    async def read(self, max_records: int, wait_s: float) -> LogRecords:
        await super().read(0, 0)
        self._log.meanwhile()  # type: ignore[attr-defined]
        return await super().read(max_records, wait_s)


class BusyLog(MemoryLog):
    """A log that the follower goes on with while the ledger reads it."""

    def __init__(self, topic: MemoryTopic, meanwhile: Callable[[], None]) -> None:
        super().__init__(topic)
        self.meanwhile = meanwhile
        self.opened = 0

    async def open_reader(self, start_offset: int) -> MemoryReader:
        self.opened += 1
        await super().open_reader(start_offset)  # refuses; the reader itself is ours
        return BusyReader(self, self._topic, start_offset)


class World:
    """A log, and the replica that follows it and feeds a ledger."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / FILE
        self.topic = MemoryTopic(TOPIC)
        for value in WORLD.values:
            self.topic.store(value)
        self.log = MemoryLog(self.topic)
        self.index = MemoryIndex()
        self.follow(self.index)

    def follow(self, index: MemoryIndex) -> None:
        self.index = index
        self.applier = Applier(index, TOPIC)
        self.ledger = DerivedLedger(self.folder, self.log, index, clock=SystemClock(), settings=SETTINGS)

    def apply_some(self, up_to: int, together: int = 3) -> bool:
        """One run, as the follower does; whether there was one."""
        after = self.applier.position.offset
        if after >= up_to:
            return False
        self.ledger.take(self.applier.apply(self.topic.records(after + 1, min(together, up_to - after))))
        return True

    async def apply(self, up_to: int, together: int = 3) -> None:
        while self.apply_some(up_to, together):
            await self.ledger.room()
            await asyncio.sleep(0)

    async def reached(self, offset: int) -> int:
        async with asyncio.timeout(LIFE_MAX_S):
            return (await self.ledger.reached(offset)).ledger_end

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[asyncio.Task[None]]:
        task = asyncio.create_task(self.ledger.run())
        try:
            yield task
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def check(self, up_to: int) -> None:
        """The file has what the log decided, and nothing else."""
        rows, begun = expected(self.topic, up_to)
        assert len(rows) > 20
        file = LedgerFile(self.path, TOPIC)
        assert list(file.rows()) == rows
        progress = file.progress()
        assert progress.position is not None
        assert (progress.position.offset, progress.ledger_end) == (up_to, len(rows))
        file.close()
        connection = sqlite3.connect(self.path)
        found = connection.execute("SELECT epoch, replica, log_offset, stamp_us FROM activation ORDER BY 1").fetchall()
        connection.close()
        assert found == begun

    @property
    def was_put_aside(self) -> bool:
        return self.path.with_name(f"{FILE}.damaged").exists()


def expected(topic: MemoryTopic, up_to: int) -> tuple[list[Row], list[tuple[int, str, int, int]]]:
    """The rows of completions, and those of activations."""
    applied = Applier(MemoryIndex(), TOPIC).apply(topic.records(0, up_to + 1))
    barriers = [(one.record.epoch, one.record.replica, one.offset, one.stamp_us) for one in applied.reading.barriers]
    return completions_of(applied), barriers


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


END = len(WORLD.values) - 1
assert END > 150


async def test_it_is_fed_from_the_log_s_first_record(world: World) -> None:
    """Goal: a new replica's ledger is fed as the index grows, from the file's first record on. Method: apply all."""
    async with world.kept():
        await world.apply(END)
        await world.reached(END)
    world.check(END)
    assert not world.was_put_aside


@pytest.mark.parametrize(("bound", "rounds"), [(5, 9), (11, 2), (50_000, 1)])
async def test_one_that_is_older_than_the_index_is_caught_up(
    world: World, monkeypatch: pytest.MonkeyPatch, bound: int, rounds: int
) -> None:
    """Goal: a ledger that lags is caught up from the log while the follower goes on. Method: keep it to 40, apply to
    110 without it; the follower applies runs during each of the ledger's reads; with a bound that keeps too little
    until the log ends, too little for the first round, or all. At the end the follower feeds it alone."""
    monkeypatch.setattr("replica.active.derived_ledger._MEANWHILE_MAX", bound)
    async with world.kept():
        await world.apply(40)
        await world.reached(40)
    world.follow(world.index)
    await world.apply(110)
    busy = world.log = BusyLog(world.topic, lambda: world.apply_some(END - 5, 4))
    world.follow(world.index)
    async with world.kept():
        await world.reached(110)
        assert busy.opened == rounds
        await world.apply(END)
        await world.reached(END)
    world.check(END)
    assert not world.was_put_aside


def test_what_waits_is_dropped_past_its_bound(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: memory is bounded while a ledger catches up. Method: runs of three records, past a bound of ten."""
    monkeypatch.setattr("replica.active.derived_ledger._MEANWHILE_MAX", 10)
    meanwhile, kept = _Meanwhile(), []
    for start in range(0, 15, 3):
        meanwhile.add(world.applier.apply(world.topic.records(start, 3)))
        kept.append((len(meanwhile.runs), meanwhile.is_cut))
    assert kept == [(1, False), (2, False), (3, False), (0, True), (0, True)]


async def test_one_that_is_newer_than_the_index_waits_for_it(world: World) -> None:
    """Goal: an index that is made anew feeds the ledger again, and nothing is there twice. Method: a new index below a
    ledger, runs that straddle its position."""
    async with world.kept():
        await world.apply(100)
        await world.reached(100)
    world.follow(MemoryIndex())
    async with world.kept():
        await world.apply(END, together=7)
        await world.reached(END)
    world.check(END)


def drop(path: Path) -> None:
    statement(path, "DROP TABLE completion")


def one_more(path: Path) -> None:
    statement(path, "INSERT INTO completion SELECT ledger_offset + 1, 0, 0, x'00', 0 FROM completion"
                    " ORDER BY ledger_offset DESC LIMIT 1")  # fmt: skip


def statement(path: Path, text: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute(text)
    connection.commit()
    connection.close()


def delete(path: Path) -> None:
    for part in path.parent.glob(f"{FILE}*"):
        part.unlink()


def replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(b"not a ledger" * 1_000)
    other.replace(path)


@pytest.mark.parametrize("damage", [drop, one_more, delete, replace])
@pytest.mark.parametrize("waits", [False, True])
async def test_one_that_is_damaged_in_mid_run_is_made_anew(
    world: World, damage: Callable[[Path], None], waits: bool
) -> None:
    """Goal: damage is found with the next write, and the ledger made anew from the log, while the follower goes on and
    nobody waits for ever. Method: damage the file in each way after 60 records, go on to the end; who waited is
    answered; the new file has everything, and its readers find it."""
    reader = SqliteReader(world.path)
    async with world.kept():
        await world.apply(60)
        await world.reached(60)
        assert await reader.read(0, 5) == expected(world.topic, 60)[0][:5]
        damage(world.path)
        waiting = asyncio.create_task(world.reached(END)) if waits else None
        await asyncio.sleep(0)
        await world.apply(END)
        end = await (waiting or world.reached(END))
    world.check(END)
    assert world.was_put_aside == (damage is not delete)
    await reader.reset()
    assert list(await reader.read(0, end)) == expected(world.topic, END)[0][:end]
    await reader.close()


async def test_damage_that_a_question_finds_is_mended_too(world: World) -> None:
    """Goal: what only pruning reads is made anew as well. Method: turn the checksums, prune, ask again."""
    async with world.kept():
        await world.apply(END)
        await world.reached(END)
        statement(world.path, "UPDATE completion SET checksum = checksum + 1")
        with pytest.raises(StoreUnavailable):
            await world.ledger.prune(None, 2**62)
        async with asyncio.timeout(LIFE_MAX_S):
            assert (await world.ledger.prune(1, 2**62)).pruned_to == 1


async def test_damage_that_nobody_reads_is_found(world: World) -> None:
    """Goal: completions that rot are mended before an application needs them: front ends that read one only refuse.
    Method: turn one checksum in the middle; ask nothing; wait; see that a pass reads every one."""
    settings = SETTINGS.model_copy(update={"scrub_records_per_s": 100_000.0})
    world.ledger = DerivedLedger(world.folder, world.log, world.index, clock=SystemClock(), settings=settings)
    async with world.kept():
        await world.apply(END)
        end = await world.reached(END)
        statement(world.path, f"UPDATE completion SET checksum = checksum + 1 WHERE ledger_offset = {end // 2}")
        async with asyncio.timeout(LIFE_MAX_S):
            while not world.was_put_aside:
                await asyncio.sleep(0.01)
        await world.reached(END)
    world.check(END)


async def test_another_history_ends_it(world: World) -> None:
    """Goal: a ledger is never continued over another log. Method: a log that ends before it, and one with another
    record at its position."""
    async with world.kept():
        await world.apply(100)
        await world.reached(100)
    for error in (LogTruncated, LogRefused):
        world.follow(MemoryIndex())
        world.topic.truncate(90)
        if error is LogRefused:
            for _ in range(90, 120):
                world.topic.store(b"another record")
        with pytest.raises(error):
            async with asyncio.timeout(LIFE_MAX_S):
                await world.ledger.run()
        with pytest.raises(StoreUnavailable):
            await world.reached(0)


async def test_what_the_ledger_lacks_is_known_until_it_has_caught_up(world: World) -> None:
    """Goal: a replica whose ledger is made anew lets others lead first. Method: apply everything without a ledger; look
    before, while a file that has a part of it catches up, and after; go on, which leaves no lag."""
    async with world.kept():
        await world.apply(60)
        await world.reached(60)
    assert world.ledger.lag_records == 61
    await world.apply(END - 10)
    world.follow(world.index)
    seen: set[int] = set()
    world.ledger._log = BusyLog(world.topic, lambda: seen.add(world.ledger.lag_records))
    assert world.ledger.lag_records == END - 9
    async with world.kept():
        await world.reached(END - 10)
        assert world.ledger.lag_records == 0
        await world.apply(END)
        assert world.ledger.lag_records == 0
    assert max(seen) == END - 70
    assert len(seen) > 2


async def test_a_log_that_is_away_is_waited_for(world: World) -> None:
    """Goal: no outage of the log ends it. Method: start without the log; then let it answer."""
    await world.apply(END)
    world.follow(world.index)
    world.log.reachable = False
    async with world.kept() as task:
        await asyncio.sleep(0.1)
        assert not task.done()
        world.log.reachable = True
        await world.reached(END)
    world.check(END)


async def test_a_disk_that_refuses_is_an_answer_and_is_tried_again(world: World, tmp_path: Path) -> None:
    """Goal: an activation steps down rather than wait for a disk. Method: a file where the folder should be; ask;
    take it away, ask again; delete the new file, which refuses nothing; ask once nobody keeps the ledger."""
    world.folder, world.path = tmp_path / "below", tmp_path / "below" / FILE
    world.folder.write_text("in the way")
    world.follow(world.index)
    async with world.kept():
        await world.apply(END - 20)
        with pytest.raises(StoreUnavailable, match="folder"):
            await world.reached(END - 20)
        world.folder.unlink()
        async with asyncio.timeout(LIFE_MAX_S):
            while True:
                with suppress(StoreUnavailable):
                    await world.reached(END - 20)
                    break
                await asyncio.sleep(0.01)
        delete(world.path)
        await world.apply(END)
        await world.reached(END)
    world.check(END)
    with pytest.raises(StoreUnavailable):
        await world.ledger.reached(END)


async def test_an_activation_publishes_over_it(world: World) -> None:
    """Goal: the store of an activation goes on when the file is made anew under it. Method: publish run by run what
    was applied, delete the file in between; the ledger end."""
    store = EmbeddedStore(world.ledger, TOPIC, Formats())
    async with world.kept(), asyncio.timeout(LIFE_MAX_S):
        assert (await store.published()).ledger_end == 0
        runs = 0
        while (after := world.applier.position.offset) < END:
            applied = world.applier.apply(world.topic.records(after + 1, 10))
            world.ledger.take(applied)
            assert await store.publish(completions_of(applied), applied.position) == 0
            runs += 1
            if runs == 8:
                delete(world.path)
        assert (await store.published()).ledger_end == len(expected(world.topic, END)[0])
    world.check(END)
