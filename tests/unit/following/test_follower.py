"""Following a log whose brokers say nothing wrong and show too little, on virtual time."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from pydantic import ValidationError

from replica.following.apply import Applied, Applier
from replica.following.follower import Follower
from replica.index.memory import MemoryIndex
from replica.log.interface import LogRecords
from replica.log.memory import MemoryLog, MemoryReader, MemoryTopic
from replica.notary.errors import LogRefused, LogTruncated
from replica.notary.position import offset_of
from replica.settings import CoreSettings
from tests.virtual_time import on_virtual_time
from tests.worlds.beginning import no_demand
from tests.worlds.ha_world import LoopClock

SETTINGS = CoreSettings(log_stall_max_s=2.0, read_wait_s=0.5, log_retry_s=0.25, standby_read_pause_s=0.0)
READY_AGAIN_MAX_S = 6.0  # a reader that was just opened is given five seconds


class Hanging(MemoryReader):
    """A reader that gives nothing while its log is set so, and never fails."""

    _log: HangingLog

    async def read(self, max_records: int, wait_s: float) -> LogRecords:
        if self in self._log.hanging:
            await asyncio.sleep(wait_s)
            return []
        return await super().read(max_records, wait_s)


class HangingLog(MemoryLog):
    """A log whose readers can be made to hang; `hangs`: those that are opened from now on do."""

    def __init__(self, topic: MemoryTopic) -> None:
        super().__init__(topic)
        self.readers: list[Hanging] = []
        self.hanging: set[MemoryReader] = set()
        self.hangs = False

    async def open_reader(self, start_offset: int) -> MemoryReader:
        await super().open_reader(start_offset)  # refuses; the reader itself is ours
        reader = Hanging(self, self._topic, start_offset)
        self.readers.append(reader)
        if self.hangs:
            self.hanging.add(reader)
        return reader


def following(log: MemoryLog, settings: CoreSettings = SETTINGS) -> tuple[Follower, asyncio.Task[None]]:
    follower = Follower(log, MemoryIndex(), LoopClock(), settings, lambda _: None, require=no_demand)
    return follower, asyncio.create_task(follower.run())


@on_virtual_time
async def test_a_reader_that_hangs_is_replaced_and_its_replica_is_not_ready_meanwhile() -> None:
    """Goal: silence is a failure where records are known to be. Method: hang the one reader; the next one is well."""
    topic = MemoryTopic()
    log = HangingLog(topic)
    follower, task = following(log)
    topic.store(b"first")
    await asyncio.sleep(1.0)
    assert (follower.applied_offset, follower.reaches_log()) == (0, True)
    log.hanging.update(log.readers)
    log.hangs = True
    await asyncio.sleep(SETTINGS.read_wait_s)  # for the read under way
    topic.store(b"second")
    await asyncio.sleep(SETTINGS.log_stall_max_s + 4 * SETTINGS.read_wait_s)
    assert (follower.applied_offset, follower.reaches_log()) == (0, False)
    assert len(log.readers) > 1
    await asyncio.sleep(60.0)
    assert not follower.reaches_log()  # nor ever, while they all hang
    log.hangs = False
    log.hanging.clear()
    await asyncio.sleep(READY_AGAIN_MAX_S)
    assert (follower.applied_offset, follower.reaches_log()) == (1, True)
    task.cancel()


@on_virtual_time
async def test_an_empty_log_has_a_position_once_it_is_reached() -> None:
    """Goal: whoever waits for the log need not wait for its first record. Method: wait, on a log that stays empty."""
    follower, task = following(HangingLog(MemoryTopic()))
    async with asyncio.timeout(SETTINGS.read_wait_s):
        assert (await follower.wait_for(lambda _: True)).offset == -1
    task.cancel()


@on_virtual_time
async def test_a_log_that_grew_again_below_the_index_is_refused() -> None:
    """Goal: what a lost record made of the index is not kept for its successor's. Method: the log has lost a record
    that was applied and got another one, which must not be applied."""
    topic, index = MemoryTopic(), MemoryIndex()
    topic.store(b"first")
    topic.store(b"second")
    Applier(index, topic.topic_id).apply([(0, b"first"), (1, b"lost")])
    follower = Follower(MemoryLog(topic), index, LoopClock(), SETTINGS, lambda _: None, require=no_demand)
    with pytest.raises(LogRefused, match="not the one that was applied"):
        async with asyncio.timeout(60.0):
            await follower.run()
    assert offset_of(follower.contradicted) == 1  # what peers are told


@on_virtual_time
async def test_a_reader_with_nothing_to_give_is_left_alone() -> None:
    """Goal: an idle log is no failure. Method: an hour without a record; one reader all the time."""
    topic = MemoryTopic()
    log = HangingLog(topic)
    follower, task = following(log)
    topic.store(b"first")
    await asyncio.sleep(3_600.0)
    assert (len(log.readers), follower.reaches_log(), follower.moved_lately()) == (1, True, False)
    topic.store(b"second")
    await asyncio.sleep(0.1)
    assert (follower.applied_offset, follower.moved_lately()) == (1, True)
    task.cancel()


@pytest.mark.parametrize("reads", ["on", "anew"])
@on_virtual_time
async def test_a_broker_that_leads_no_more_ends_nobody(reads: str) -> None:
    """Goal: one broker's short log is no lost record. Method: it answers, alone; the reader goes on, or is opened
    again meanwhile, and finds the others."""
    topic = MemoryTopic()
    log = MemoryLog(topic)
    follower, task = following(log)
    for number in range(5):
        topic.store(b"%d" % number)
    await asyncio.sleep(1.0)
    log.old_end = 3
    if reads == "anew":
        log.reachable = False
        await asyncio.sleep(1.0)
        log.reachable = True
    for number in range(20):
        topic.store(b"later %d" % number)
        await asyncio.sleep(0.5)
        assert not task.done()
    assert follower.applied_offset == (24 if reads == "on" else 4)
    assert follower.reaches_log() is (reads == "on")
    log.old_end = None
    await asyncio.sleep(1.0)
    assert (follower.applied_offset, follower.reaches_log()) == (24, True)
    task.cancel()


@on_virtual_time
async def test_a_log_that_lost_its_end_is_refused_by_all_brokers_word() -> None:
    """Goal: lost records end the replica. Method: cut the topic itself, under a follower."""
    topic = MemoryTopic()
    _, task = following(MemoryLog(topic))
    for number in range(5):
        topic.store(b"%d" % number)
    await asyncio.sleep(1.0)
    topic.truncate(3)
    await asyncio.sleep(1.0)
    with pytest.raises(LogTruncated):
        await task


@on_virtual_time
async def test_a_log_that_becomes_unsafe_is_told_and_ends_nobody() -> None:
    """Goal: a changed setting takes no replica away, let alone all. Method: break the contract, have the reader opened
    again meanwhile, mend it; then start on an unsafe log."""
    topic = MemoryTopic()
    log = MemoryLog(topic)
    follower, task = following(log)
    for number in range(5):
        topic.store(b"%d" % number)
    await asyncio.sleep(1.0)
    log.unsafe = ("retention.ms is 1, required is -1",)
    topic.cut_off(2)
    await asyncio.sleep(SETTINGS.log_check_every_s + 1.0)
    assert list(follower.hazards) == ["retention.ms is 1, required is -1", "the topic begins at offset 2"]
    log.reachable = False
    await asyncio.sleep(3.0)
    log.reachable = True
    topic.store(b"5")
    await asyncio.sleep(2.0)
    assert (follower.applied_offset, follower.reaches_log(), task.done()) == (5, True, False)
    log.unsafe, topic.first_offset = (), 0
    await asyncio.sleep(SETTINGS.log_check_every_s + 1.0)
    assert not follower.hazards
    task.cancel()
    log.unsafe = ("min.insync.replicas is 1, required is 2 or more",)
    _, refused = following(log)
    await asyncio.sleep(1.0)
    with pytest.raises(LogRefused, match="TOPIC_UNSAFE"):
        await refused


def test_a_replica_looks_at_the_log_more_often_than_it_gives_it_up() -> None:
    """Goal: no configuration ends every activation of a quiet log. Method: a wait at the limit, and above it."""
    assert CoreSettings(read_wait_s=2.0).log_stall_max_s == 2.0
    for values in ({"read_wait_s": 2.1}, {"log_stall_max_s": 0.4}):
        with pytest.raises(ValidationError, match=r"core\.read_wait_s is above core\.log_stall_max_s"):
            CoreSettings(**values)


@on_virtual_time
async def test_it_goes_on_when_there_is_room() -> None:
    """Goal: what takes the runs bounds how many it holds. Method: no room after the first run; then room."""
    topic, room, taken = MemoryTopic(), asyncio.Event(), []
    follower = Follower(
        MemoryLog(topic),
        MemoryIndex(),
        LoopClock(),
        SETTINGS,
        lambda applied: taken.append(applied.position.offset),
        room=room.wait,
        require=no_demand,
    )
    task = asyncio.create_task(follower.run())
    for value in (b"first", b"second"):
        topic.store(value)
        await asyncio.sleep(1.0)
        assert taken == [0]
    room.set()
    await asyncio.sleep(1.0)
    assert taken == [0, 1]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@on_virtual_time
async def test_in_a_hurry_many_records_gather_and_a_few_do_not() -> None:
    """Goal: a worker reads others' records in large runs, and nobody's single record waits. Method: a record, then
    twenty a millisecond, then one again; when each run was applied."""
    topic, runs = MemoryTopic(), list[tuple[float, int]]()
    loop = asyncio.get_running_loop()

    def note(applied: Applied) -> None:
        runs.append((loop.time(), len(applied.reading.voids)))

    follower = Follower(MemoryLog(topic), MemoryIndex(), LoopClock(), SETTINGS, note, require=no_demand)
    follower.hurry(True, gather_s=0.005)
    task = asyncio.create_task(follower.run())
    await asyncio.sleep(1.0)
    for _ in range(3):
        topic.store(b"alone")
        await asyncio.sleep(0.001)
    assert [count for _, count in runs] == [1, 1, 1]
    runs.clear()
    for _ in range(20):
        for _ in range(20):
            topic.store(b"one of many")
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.010)
    assert sum(count for _, count in runs) == 400
    assert min(after - before for (before, _), (after, _) in pairwise(runs)) >= 0.0049
    assert len(runs) <= 5
    runs.clear()
    at_s = loop.time()
    topic.store(b"alone")
    await asyncio.sleep(0.001)
    assert [count for _, count in runs] == [1]
    assert runs[0][0] - at_s < 0.001
    task.cancel()
