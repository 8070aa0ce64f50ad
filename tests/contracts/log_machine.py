"""The request log's contract as random calls: the log in memory and another kind are asked the same.

Named differences: the log's identity, which is compared with what another replica sees; and what a reader returns that
was cut off under it, as a real one has fetched ahead.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, MultipleResults, initialize, multiple, precondition, rule

from replica.log.interface import LogReader, LogRecords, LogWriter, RequestLog
from replica.notary.errors import LogTruncated, LogUnavailable
from tests.contracts.side_by_side import Make, SideBySide
from tests.unit.log.test_contract import READ_WAIT_S, MemoryUnderTest, TopicUnderTest, read_all

VALUES = st.sampled_from([b"", b"\x00\xff" * 7, bytes(range(256)), b"x" * 20_000]) | st.binary(max_size=9)
OPEN_MAX = 20  # readers and writers: each is a connection, and the tests' Postgres takes 100
CLOSED = LogUnavailable, LogUnavailable("").code
GONE = LogTruncated, LogTruncated("").code


@dataclass
class LogWorld:
    """One topic, two replicas' access to it, and what they opened."""

    topic: TopicUnderTest
    logs: list[RequestLog] = field(default_factory=list)
    handles: list[Any] = field(default_factory=list)

    async def open_logs(self) -> None:
        self.logs += [self.topic.log(), self.topic.log()]

    async def open_reader(self, log: int, offset: int) -> None:
        self.handles.append(await self.logs[log].open_reader(offset))

    async def open_writer(self, log: int) -> None:
        self.handles.append(await self.logs[log].open_writer())

    async def append(self, writer: int, values: Sequence[bytes], end: int) -> int:
        """Returns once the log has them all: only then is there an order between writers."""
        used: LogWriter = self.handles[writer]
        if len(values) == 1:
            used.append(values[0])
        else:
            used.append_all(values)
        async with asyncio.timeout(READ_WAIT_S):
            while await self.logs[0].end_offset() < end:
                await asyncio.sleep(0.002)
        return used.failed_count

    async def read(self, reader: int, count: int, max_records: int) -> LogRecords:
        """So many, by reads of at most so many; then one that must find nothing more, if none is left."""
        used: LogReader = self.handles[reader]
        return await read_all(used, count, max_records) if count else list(await used.read(max_records, 0.0))

    async def look(self, log: int) -> tuple[int, int, bool, bool]:
        asked, other = self.logs[log], self.logs[1 - log]
        is_same = await asked.check() == await other.check() != ""
        return await asked.end_offset(), await asked.agreed_end_offset(), is_same, bool(await asked.hazards())

    async def close(self, handle: int) -> bool:
        await self.handles[handle].close()
        return getattr(self.handles[handle], "has_ended", True)

    async def close_log(self, log: int) -> None:
        """Its replica goes on with another."""
        await self.logs[log].close()
        self.logs[log] = self.topic.log()


class LogMachine(SideBySide[LogWorld]):
    """Dense offsets, one order, nothing read that was not stored; on a log that never lets go of its start."""

    readers, writers = Bundle("readers"), Bundle("writers")
    logs = st.sampled_from([0, 1])

    def __init__(self, double: Make[LogWorld], other: Make[LogWorld]) -> None:
        super().__init__(double, other)
        self.first, self.records = 0, list[bytes]()
        self.log_of: list[int] = []  # by handle
        self.next: dict[int, int] = {}  # by reader
        self.closed: set[int] = set()

    @initialize()
    def begin(self) -> None:
        self.same(lambda world: world.open_logs())

    @rule(values=st.lists(st.none() | VALUES, min_size=1, max_size=4))
    def put(self, values: list[bytes | None]) -> None:
        """By somebody else."""
        self.same(lambda world: world.topic.put(*values))
        self.records += [value or b"" for value in values]

    @precondition(lambda self: self.open_count < OPEN_MAX)
    @rule(target=readers, log=logs, back=st.integers(-1, 9))
    def open_reader(self, log: int, back: int) -> int | MultipleResults[int]:
        offset = max(0, len(self.records) - back)
        if not self.first <= offset <= len(self.records):
            self.same(lambda world: world.open_reader(log, offset), GONE)
            return multiple()
        self.next[len(self.log_of)] = offset
        return self._opened(log, lambda world: world.open_reader(log, offset))

    @precondition(lambda self: self.open_count < OPEN_MAX)
    @rule(target=writers, log=logs)
    def open_writer(self, log: int) -> int:
        return self._opened(log, lambda world: world.open_writer(log))

    @property
    def open_count(self) -> int:
        return len(self.log_of) - len(self.closed)

    def _opened(self, log: int, opening: Callable[[LogWorld], Any]) -> int:
        self.same(opening, None)
        self.log_of.append(log)
        return len(self.log_of) - 1

    @rule(writer=writers, values=st.lists(VALUES, min_size=1, max_size=5))
    def append(self, writer: int, values: list[bytes]) -> None:
        is_closed, end = writer in self.closed, len(self.records) + len(values)
        self.same(lambda world: world.append(writer, values, end), CLOSED if is_closed else 0)
        self.records += [] if is_closed else values

    @rule(reader=readers, wanted=st.integers(0, 9), max_records=st.integers(1, 9))
    def read(self, reader: int, wanted: int, max_records: int) -> None:
        start = self.next[reader]
        if start < self.first:
            return
        count = min(max(wanted, 1), len(self.records) - start)
        found = list(enumerate(self.records))[start : start + count]
        expected = CLOSED if reader in self.closed else found
        self.same(lambda world: world.read(reader, count, max_records), expected)
        self.next[reader] += len(found)

    @rule(log=logs)
    def look(self, log: int) -> None:
        is_cut, end = self.first > 0, len(self.records)
        self.same(lambda world: world.look(log), GONE if is_cut else (end, end, True, False))

    @rule(handle=readers | writers)
    def close(self, handle: int) -> None:
        """Again, too."""
        self.same(lambda world: world.close(handle), True)
        self.closed.add(handle)

    @rule(log=logs)
    def close_log(self, log: int) -> None:
        self.same(lambda world: world.close_log(log), None)
        self.closed |= {handle for handle, of in enumerate(self.log_of) if of == log}


class CutLogMachine(LogMachine):
    """Of a log whose first records may be gone, one by one: a log on Postgres loses batches."""

    @precondition(lambda self: self.first < len(self.records))
    @rule(kept=st.integers(0, 5))
    def cut_off(self, kept: int) -> None:
        self.first = max(self.first, len(self.records) - kept)
        self.same(lambda world: world.topic.cut_off(self.first), None)


@asynccontextmanager
async def log_world(topic: TopicUnderTest) -> AsyncIterator[LogWorld]:
    """A world on an empty topic."""
    world = LogWorld(topic)
    yield world
    for log in world.logs:
        await log.close()


def memory_world() -> Any:
    """The double's."""
    return log_world(MemoryUnderTest())
