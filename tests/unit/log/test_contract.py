"""What every request log promises: one suite, run here over the doubles, and over each kind as `open_log` gives it."""

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

    async def test_brokers_that_are_one_another_s_peers_agree_where_the_log_ends(
        self, topic_under_test: TopicUnderTest
    ) -> None:
        """Goal: where nobody is cut off, all say the same. Method: ask both ways, before and after records."""
        log = topic_under_test.log()
        assert await log.agreed_end_offset() == await log.end_offset() == 0
        await topic_under_test.put(*numbered(10))
        assert await log.agreed_end_offset() == await log.end_offset() == 10
        await log.close()

    async def test_a_reader_starts_where_it_is_told_and_goes_on_as_the_log_grows(
        self, topic_under_test: TopicUnderTest
    ) -> None:
        """Goal: a position is enough to go on from. Method: start inside and at the end, then store more."""
        log = topic_under_test.log()
        await topic_under_test.put(*numbered(10))
        inside, at_end = await log.open_reader(7), await log.open_reader(10)
        assert [offset for offset, _ in await read_all(inside, 3)] == [7, 8, 9]
        assert await at_end.read(10, QUIET_S) == []
        await topic_under_test.put(b"next")
        assert await read_all(inside, 1) == await read_all(at_end, 1) == [(10, b"next")]
        await log.close()

    async def test_a_read_returns_no_more_than_asked_for_and_loses_nothing(
        self, topic_under_test: TopicUnderTest
    ) -> None:
        """Goal: the caller bounds its batches. Method: read 20 records by ones and by sevens."""
        log = topic_under_test.log()
        await topic_under_test.put(*numbered(20))
        for max_records in (1, 7):
            reader, seen = await log.open_reader(0), 0
            while seen < 20:
                run = await reader.read(max_records, READ_WAIT_S)
                assert [offset for offset, _ in run] == list(range(seen, seen + len(run)))
                assert 1 <= len(run) <= max_records
                seen += len(run)
            assert await reader.read(max_records, 0.0) == []
        await log.close()

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

    async def test_a_null_value_is_read_as_empty(self, topic_under_test: TopicUnderTest) -> None:
        """Goal: every offset has bytes to judge, whichever writer they came from. Method: store a null between two
        records."""
        log = topic_under_test.log()
        await topic_under_test.put(b"before", None, b"after")
        assert await read_all(await log.open_reader(0), 3) == [(0, b"before"), (1, b""), (2, b"after")]
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

    async def test_every_replica_sees_the_same_identity(self, topic_under_test: TopicUnderTest) -> None:
        """Goal: positions of two replicas can be compared. Method: check the topic through two logs, twice."""
        ours, theirs = topic_under_test.log(), topic_under_test.log()
        assert await ours.check() == await theirs.check() == await ours.check() != ""
        await ours.close()
        await theirs.close()

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

    async def test_a_closed_writer_takes_nothing(self, topic_under_test: TopicUnderTest) -> None:
        """Goal: a deposed active cannot append by mistake. Method: append after one and two closes."""
        log = topic_under_test.log()
        writer = await log.open_writer()
        writer.append(b"counts")
        reader = await log.open_reader(0)
        assert await read_all(reader, 1) == [(0, b"counts")]
        assert not writer.has_ended
        for _ in range(2):
            await writer.close()
            assert writer.has_ended
            with pytest.raises(LogUnavailable, match="closed"):
                writer.append(b"too late")
            with pytest.raises(LogUnavailable, match="closed"):
                writer.append_all([b"too late"])
        assert await reader.read(1, QUIET_S) == []
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

    async def test_closing_the_log_closes_what_it_opened(self, topic_under_test: TopicUnderTest) -> None:
        """Goal: one call ends every connection. Method: close the log, then use its writer and reader."""
        log = topic_under_test.log()
        reader, writer = await log.open_reader(0), await log.open_writer()
        await log.close()
        await log.close()
        with pytest.raises(LogUnavailable):
            await reader.read(1, 0.0)
        with pytest.raises(LogUnavailable):
            writer.append(b"too late")


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
