"""The request log in memory, for tests and for the simulator: plain asyncio, no thread, only the loop's clock.

A `MemoryTopic` is the durable part. Each `MemoryLog` is one replica's access to it. A `Delivery` is the path of an
append: a simulator overrides `send` to delay, lose, repeat or reorder records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from replica.log.interface import LogRecords, RoundTrip
from replica.notary.codes import Code
from replica.notary.errors import LogLeaderChanged, LogRefused, LogTruncated, LogUnavailable, NotaryError
from replica.notary.records import check_sizes


class MemoryTopic:
    """The records, shared by every log over this topic. Methods simulate the faults of a real topic."""

    def __init__(self, topic_id: str = "memory-1", values: Iterable[bytes] = ()) -> None:
        """`values`: the first records."""
        self.topic_id = topic_id
        self.first_offset = 0
        self.term = 0  # counts the leaders that lacked records
        self._records = list(values)
        self._changed = asyncio.Event()

    @property
    def end_offset(self) -> int:
        """The offset that the next record will get."""
        return len(self._records)

    def store(self, value: bytes) -> None:
        """Make a record durable at the end."""
        self._records.append(value)
        self.wake()

    def records(self, start_offset: int, max_records: int) -> LogRecords:
        """Up to `max_records` records from `start_offset` on."""
        return list(enumerate(self._records[start_offset : start_offset + max_records], start_offset))

    def cut_off(self, first_offset: int) -> None:
        """Lose the oldest records, as a topic with a retention limit does."""
        self.first_offset = first_offset
        self.wake()

    def truncate(self, end_offset: int) -> None:
        """Lose the newest records, as when a broker that had missed them is elected leader."""
        del self._records[end_offset:]
        self.term += 1
        self.wake()

    def recreate(self, topic_id: str) -> None:
        """Delete the topic with all its records, and create it again under the same name."""
        self.topic_id, self.first_offset = topic_id, 0
        self.truncate(0)

    async def changed(self) -> None:
        """Return once `wake` is called. Every event of the topic calls it."""
        await self._changed.wait()

    def wake(self) -> None:
        """Make every waiting reader look again."""
        self._changed.set()
        self._changed = asyncio.Event()


class Delivery:
    """How the appends of one writer reach the topic. This class stores them at once."""

    def send(self, value: bytes, topic: MemoryTopic, give_up: Callable[[], None]) -> None:
        """Store the record, sooner or later, or call `give_up`. A record that was given up may still be stored.

        Raises LogUnavailable instead when the queue is full.
        """
        topic.store(value)

    def purge(self) -> None:
        """The writer closes: forget what was not sent. What was sent may still be stored."""


class MemoryLog:
    """A `RequestLog` over a MemoryTopic. While `reachable` is False, every question, read and append fails.

    `old_end` simulates a broker that is cut off from its peers: it still calls itself the leader, and shows the log as
    it was up to that offset. It affects every question except whether the brokers agree, and readers opened meanwhile.
    """

    def __init__(self, topic: MemoryTopic, delivery: Callable[[], Delivery] = Delivery) -> None:
        self.reachable = True
        self.old_end: int | None = None
        self.unsafe: tuple[str, ...] = ()  # rules of the contract that are broken
        self._topic = topic
        self._topic_id = topic.topic_id
        self._delivery = delivery
        self._open: set[MemoryReader | MemoryWriter] = set()

    @property
    def answer_times(self) -> Mapping[str, RoundTrip]:
        """See `RequestLog.answer_times`: nothing is measured."""
        return {}

    def expect(self, topic_id: str) -> None:
        """The log has been seen before, and had this identity."""
        self._topic_id = topic_id

    async def check(self) -> str:
        """The topic's id. Raises LogRefused when `unsafe` is set."""
        self._require_reachable()
        if self.unsafe:
            raise LogRefused("; ".join(self.unsafe), Code.TOPIC_UNSAFE)
        if self._topic.first_offset:
            raise LogTruncated(f"the topic begins at offset {self._topic.first_offset}: the records before are gone")
        self._topic_id = self._topic.topic_id
        return self._topic_id

    async def hazards(self) -> Sequence[str]:
        """See `RequestLog.hazards`."""
        first = self._topic.first_offset
        return [*self.unsafe, *([f"the topic begins at offset {first}"] if first else [])]

    async def end_offset(self) -> int:
        """See `RequestLog.end_offset`."""
        end = self._end()
        return end if self.old_end is None else min(end, self.old_end)

    async def agreed_end_offset(self) -> int:
        """See `RequestLog.agreed_end_offset`."""
        return self._end()

    async def open_reader(self, start_offset: int) -> MemoryReader:
        """See `RequestLog.open_reader`."""
        first, end = self._topic.first_offset, await self.agreed_end_offset()
        if not first <= start_offset <= end:
            raise LogTruncated(f"the log has offsets from {first} to below {end}, asked for is {start_offset}")
        reader = MemoryReader(self, self._topic, start_offset)
        reader.old_end = self.old_end
        self._open.add(reader)
        return reader

    async def open_writer(self) -> MemoryWriter:
        """See `RequestLog.open_writer`."""
        self._require_reachable()
        writer = MemoryWriter(self, self._topic, self._delivery())
        self._open.add(writer)
        return writer

    async def close(self) -> None:
        """See `RequestLog.close`."""
        for handle in tuple(self._open):
            await handle.close()

    def forget(self, handle: MemoryReader | MemoryWriter) -> None:
        """A reader or writer reports that it is closed."""
        self._open.discard(handle)

    def _end(self) -> int:
        self._require_reachable()
        if self._topic.topic_id != self._topic_id:
            raise LogRefused(f"the topic was created anew: its id is {self._topic.topic_id}, it was {self._topic_id}")
        return self._topic.end_offset

    def _require_reachable(self) -> None:
        if not self.reachable:
            raise LogUnavailable("the log in memory is out of reach")


class MemoryReader:
    """A `LogReader` over a MemoryTopic. With an `old_end` it reads from a broker that stopped there: the reader is
    silent at that offset, and fails with a missing offset after it."""

    old_end: int | None = None

    def __init__(self, log: MemoryLog, topic: MemoryTopic, start_offset: int) -> None:
        self._log = log
        self._topic = topic
        self._topic_id = topic.topic_id
        self._term = topic.term
        self._next = start_offset
        self._closed = False
        self._failure: NotaryError | None = None

    async def read(self, max_records: int, wait_s: float) -> LogRecords:
        """See `LogReader.read`."""
        self._require_readable()
        await self._wait(wait_s)
        self._require_readable()
        shown = max_records if self.old_end is None else min(max_records, max(0, self.old_end - self._next))
        records = self._topic.records(self._next, shown)
        self._next += len(records)
        return records

    async def _wait(self, wait_s: float) -> None:
        """Wait until there is a record to read or the reader is closed; at most `wait_s`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while self._next in (self._topic.end_offset, self.old_end) and self._find_failure() is None:
                    await self._topic.changed()

    async def close(self) -> None:
        """See `LogReader.close`."""
        self._closed = True
        self._topic.wake()
        self._log.forget(self)

    def _require_readable(self) -> None:
        self._failure = self._failure or self._find_failure()
        if self._failure is not None:
            raise self._failure

    def _find_failure(self) -> NotaryError | None:
        if self._closed or not self._log.reachable:
            return LogUnavailable("the reader is closed" if self._closed else "the log in memory is out of reach")
        if self._topic.topic_id != self._topic_id:
            return LogRefused(f"the topic was created anew: its id is {self._topic.topic_id}, it was {self._topic_id}")
        if not self._topic.first_offset <= self._next <= self._topic.end_offset:
            return LogTruncated(f"the log no longer has offset {self._next}")
        if self._topic.term != self._term:
            return LogLeaderChanged("another broker leads")
        if self.old_end is not None and self._next > self.old_end:  # most brokers say otherwise
            return LogUnavailable(f"a broker has no offset {self._next}; but other brokers have it")
        return None


class MemoryWriter:
    """A `LogWriter` over a MemoryTopic."""

    def __init__(self, log: MemoryLog, topic: MemoryTopic, delivery: Delivery) -> None:
        self._log = log
        self._topic = topic
        self._delivery = delivery
        self._closed = False
        self._failed_count = 0

    @property
    def failed_count(self) -> int:
        """See `LogWriter.failed_count`."""
        return self._failed_count

    @property
    def has_ended(self) -> bool:
        """See `LogWriter.has_ended`."""
        return self._closed

    @property
    def is_connected(self) -> bool:
        """See `LogWriter.is_connected`."""
        return not self._closed

    def append(self, value: bytes) -> None:
        """See `LogWriter.append`."""
        if self._closed:
            raise LogUnavailable("the writer is closed")
        check_sizes([value])
        if self._log.reachable:
            self._delivery.send(value, self._topic, self._give_up)
        else:
            self._give_up()

    def append_all(self, values: Sequence[bytes]) -> None:
        """See `LogWriter.append_all`."""
        for value in values:
            self.append(value)

    async def close(self) -> None:
        """See `LogWriter.close`."""
        if not self._closed:
            self._closed = True
            self._delivery.purge()
            self._log.forget(self)

    def _give_up(self) -> None:
        self._failed_count += 1
