"""What every request log promises: one suite, run here over the doubles, and over each kind as `open_log` gives it.

`tests/contracts/log_machine.py` has what random calls show.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

import pytest

from replica.log.interface import LogReader, LogRecords, RequestLog
from replica.log.memory import MemoryLog, MemoryTopic
from replica.notary.errors import InvariantBroken, LogRefused, LogUnavailable
from replica.notary.records import RECORD_MAX_BYTES

READ_WAIT_S = 5.0  # how long a record may take that must come
QUIET_S = 0.05  # how long to look for a record that must not come


class TopicUnderTest(Protocol):
    """One empty topic, and what others may do to it."""

    def log(self) -> RequestLog:
        """Another replica's access to the topic."""

    async def put(self, *values: bytes | None) -> None:
        """Store records as somebody else would, null values included."""

    async def cut_off(self, first_offset: int) -> None:
        """Delete the records before `first_offset`."""

    async def recreate(self) -> None:
        """Delete the topic and create it again."""


async def read_all(reader: LogReader, count: int, max_records: int = 500) -> LogRecords:
    """Exactly `count` records; fails when one does not come in time."""
    records: list[tuple[int, bytes]] = []
    while len(records) < count:
        run = await reader.read(min(max_records, count - len(records)), READ_WAIT_S)
        assert run, f"only {len(records)} of {count} records came"
        records += run
    return records


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"record %d" % number for number in range(start, start + count)]


class LogContract:
    """The suite. A subclass provides the fixture `topic_under_test`."""

    async def test_appended_records_are_read_back_in_order_from_offset_0(
        self, topic_under_test: TopicUnderTest
    ) -> None:
        """Goal: offsets are dense and values whole. Method: append awkward values, read them with another replica."""
        ours, theirs = topic_under_test.log(), topic_under_test.log()
        values = [b"first", b"", b"\x00\xff" * 7, bytes(range(256)), b"x" * RECORD_MAX_BYTES, *numbered(300)]
        writer = await ours.open_writer()
        for value in values:
            writer.append(value)
        for log in (ours, theirs):
            records = await read_all(await log.open_reader(0), len(values))
            assert records == list(enumerate(values))
            assert await log.end_offset() == len(values)
        assert writer.failed_count == 0
        await ours.close()
        await theirs.close()

    async def test_a_waiting_read_ends_with_the_first_record(self, topic_under_test: TopicUnderTest) -> None:
        """Goal: a record is not held back until the wait is over. Method: store one under a long read."""
        log = topic_under_test.log()
        reader = await log.open_reader(0)
        waiting = asyncio.create_task(reader.read(500, 60.0))
        await asyncio.sleep(QUIET_S)
        assert not waiting.done()
        await topic_under_test.put(b"here")
        async with asyncio.timeout(READ_WAIT_S):
            assert await waiting == [(0, b"here")]
        await log.close()

    async def test_a_cancelled_read_leaves_its_records_to_the_next_one(self, topic_under_test: TopicUnderTest) -> None:
        """Goal: no gap for the reader that goes on. Method: cancel reads at once while records arrive."""
        log = topic_under_test.log()
        reader, seen, cancelled_count = await log.open_reader(0), list[tuple[int, bytes]](), 0
        for number in range(5):
            reading = asyncio.create_task(reader.read(500, READ_WAIT_S))
            await asyncio.sleep(0)
            reading.cancel()
            await topic_under_test.put(*numbered(7, start=7 * number))
            try:
                seen += await reading
            except asyncio.CancelledError:
                cancelled_count += 1
        seen += await read_all(reader, 35 - len(seen), max_records=3)
        assert seen == list(enumerate(numbered(35)))
        assert cancelled_count > 0
        await log.close()

    async def test_an_offset_that_the_log_does_not_have_is_refused(self, topic_under_test: TopicUnderTest) -> None:
        """Goal: a truncated log is never read as a shorter truth. Method: open behind the end, before the start."""
        log = topic_under_test.log()
        await topic_under_test.put(*numbered(5))
        with pytest.raises(LogRefused, match="asked for is 6"):
            await log.open_reader(6)
        await topic_under_test.cut_off(3)
        with pytest.raises(LogRefused, match="from 3 to below 5, asked for is 2"):
            await log.open_reader(2)
        assert await read_all(await log.open_reader(3), 2) == [(3, b"record 3"), (4, b"record 4")]
        await log.close()

    async def test_a_topic_that_was_created_anew_is_refused(self, topic_under_test: TopicUnderTest) -> None:
        """Goal: an empty new topic does not mean that nothing was spent. Method: recreate it under a log in use."""
        log = topic_under_test.log()
        before = await log.check()
        await topic_under_test.put(*numbered(3))
        assert await log.end_offset() == 3
        await topic_under_test.recreate()
        await topic_under_test.put(*numbered(10))
        with pytest.raises(LogRefused, match="created anew"):
            await log.end_offset()
        with pytest.raises(LogRefused, match="created anew"):
            await log.open_reader(3)
        assert await log.check() != before
        assert await log.end_offset() == 10
        await log.close()

    async def test_records_appended_together_keep_their_order(self, topic_under_test: TopicUnderTest) -> None:
        """Goal: together is as good as one by one. Method: several batches, one of them empty, and single records."""
        log = topic_under_test.log()
        writer, reader = await log.open_writer(), await log.open_reader(0)
        values = numbered(300)
        for start in range(0, 300, 100):
            writer.append(values[start])
            writer.append_all(values[start + 1 : start + 100])
            writer.append_all([])
        assert await read_all(reader, 300) == list(enumerate(values))
        await log.close()

    async def test_a_record_that_is_too_large_is_a_bug_of_ours(self, topic_under_test: TopicUnderTest) -> None:
        """Goal: limits are kept before the log, not by it. Method: append one byte more than the largest record."""
        log = topic_under_test.log()
        writer = await log.open_writer()
        with pytest.raises(InvariantBroken, match=str(RECORD_MAX_BYTES)):
            writer.append(bytes(RECORD_MAX_BYTES + 1))
        with pytest.raises(InvariantBroken, match=str(RECORD_MAX_BYTES)):
            writer.append_all([b"short", bytes(RECORD_MAX_BYTES + 1)])
        await log.close()

    async def test_closing_a_reader_ends_its_read(self, topic_under_test: TopicUnderTest) -> None:
        """Goal: a step-down does not wait for a record. Method: close under a long read, twice."""
        log = topic_under_test.log()
        reader = await log.open_reader(0)
        waiting = asyncio.create_task(reader.read(500, 60.0))
        await asyncio.sleep(QUIET_S)
        async with asyncio.timeout(READ_WAIT_S):
            await reader.close()
            await reader.close()
            with pytest.raises(LogUnavailable, match="closed"):
                await waiting
        with pytest.raises(LogUnavailable, match="closed"):
            await reader.read(1, 0.0)
        await log.close()


class MemoryUnderTest:
    """A MemoryTopic as the contract suite sees it."""

    def __init__(self) -> None:
        self.topic = MemoryTopic()

    def log(self) -> RequestLog:
        return MemoryLog(self.topic)

    async def put(self, *values: bytes | None) -> None:
        for value in values:
            self.topic.store(value or b"")

    async def cut_off(self, first_offset: int) -> None:
        self.topic.cut_off(first_offset)

    async def recreate(self) -> None:
        self.topic.recreate("memory-2")


class TestMemoryLog(LogContract):
    @pytest.fixture
    def topic_under_test(self) -> MemoryUnderTest:
        return MemoryUnderTest()
