"""The known way to sequence on a database, a rival of the head row: writers stamp, and readers trust watermarks.

Each node has an index and the share of the timestamps with that remainder. Its row of `watermark` says up to where it
will insert nothing more; an idle node moves it by a keep-alive. Readers read up to the lowest watermark of all nodes
online. A node whose watermark stands still is marked offline by any other, which frees the readers; its later events
do not count, and it deletes them when it comes back. Offsets are the reader's count.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from time import time_ns

import psycopg
from psycopg.rows import TupleRow

from replica.log.interface import LogRecords
from replica.log.postgres.session import BinaryRecords, _RecordsDumper, pack
from replica.notary.errors import LogUnavailable

KEEP_ALIVE_S = 0.05
OFFLINE_AFTER_S = 8.0
POLL_S = 0.05
NODES = 16
BATCH_MAX = 2_000
Connection = psycopg.AsyncConnection[TupleRow]

SCHEMA = """
CREATE TABLE watermark (node int PRIMARY KEY, at bigint NOT NULL, online boolean NOT NULL) WITH (fillfactor = 10);
CREATE TABLE event (at bigint PRIMARY KEY, node int NOT NULL, record bytea NOT NULL );
CREATE FUNCTION put(of_node int, first bigint, step int, until bigint, records bytea []) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO event (at, node, record)
    SELECT first + (r.n - 1) * step, of_node, r.record FROM unnest(records) WITH ORDINALITY AS r (record, n);
    UPDATE watermark SET at = until WHERE node = of_node AND online;
    IF NOT FOUND THEN RAISE EXCEPTION 'this node was marked offline'; END IF;
    NOTIFY event;
    RETURN true;
END
$$;
"""
# Deleting what was inserted above its own watermark, and coming online, are one transaction.
_RECOVER = "DELETE FROM event e USING watermark w WHERE w.node = %(node)s AND e.node = w.node AND e.at > w.at"
_JOIN = """
INSERT INTO watermark VALUES (%(node)s, %(at)s, true)
ON CONFLICT (node) DO UPDATE SET at = greatest(watermark.at, excluded.at), online = true
"""
_KEEP_ALIVE = "UPDATE watermark SET at = %(at)s WHERE node = %(node)s AND online"
_MARK_OFFLINE = "UPDATE watermark SET online = false WHERE online AND at < %(before)s"
_READ = """
SELECT e.at, e.record FROM event e JOIN watermark w USING (node)
WHERE e.at > %(after)s AND e.at <= (SELECT min(at) FROM watermark WHERE online) AND (w.online OR e.at <= w.at)
ORDER BY e.at LIMIT %(most)s
"""


async def install(dsn: str) -> None:
    """Make the tables."""
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as own:
        await own.execute(SCHEMA.encode())


class WatermarkLog:
    """The part of a `RequestLog` that is measured. Readers start at offset 0."""

    def __init__(self, dsn: str, node: int = 0) -> None:
        """`node`: the index of the first writer; the others count on."""
        self._dsn = dsn
        self._next_node = node
        self._open: list[WatermarkReader | WatermarkWriter] = []

    async def open_writer(self) -> WatermarkWriter:
        """A writer with a node index of its own."""
        node, self._next_node = self._next_node, self._next_node + 1
        writer = WatermarkWriter(await self._connect(), await self._connect(), node)
        await writer.join()
        self._open.append(writer)
        return writer

    async def open_reader(self, start_offset: int) -> WatermarkReader:
        """A reader that returns what there is from `start_offset` on."""
        reader = WatermarkReader(await self._connect())
        await reader.listen()
        while start_offset > reader.offset:
            await reader.read(start_offset - reader.offset, 1.0)
        self._open.append(reader)
        return reader

    async def close(self) -> None:
        """Close whatever is open."""
        for handle in self._open:
            await handle.close()

    async def _connect(self) -> Connection:
        return await psycopg.AsyncConnection.connect(self._dsn, autocommit=True)


class WatermarkWriter:
    """One node. Appends made while a statement is in progress are sent together."""

    def __init__(self, connection: Connection, beside: Connection, node: int) -> None:
        connection.adapters.register_dumper(BinaryRecords, _RecordsDumper)
        self._connection = connection
        self._beside = beside
        self._node = node
        self._at = 0
        self._queue: deque[bytes] = deque()
        self._more = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.failed_count = 0

    @property
    def has_ended(self) -> bool:
        """See `LogWriter.has_ended`."""
        return self._tasks[0].done()

    async def join(self) -> None:
        """Recover and come online."""
        async with self._connection.transaction():
            await self._connection.execute(_RECOVER, {"node": self._node})
            await self._connection.execute(_JOIN, {"node": self._node, "at": self._stamp(1)})
        self._tasks = [asyncio.create_task(self._write()), asyncio.create_task(self._watch())]

    def append(self, value: bytes) -> None:
        """See `LogWriter.append`."""
        self.append_all([value])

    def append_all(self, values: Sequence[bytes]) -> None:
        """See `LogWriter.append_all`."""
        if self._tasks[0].done():
            raise LogUnavailable("the writer is over")
        self._queue.extend(values)
        self._more.set()

    def freeze(self) -> None:
        """Do nothing more, as a process that was stopped or killed: it stays online, and its watermark stands still."""
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        """See `LogWriter.close`."""
        self.freeze()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._connection.close()
        await self._beside.close()

    def _stamp(self, count: int) -> int:
        """The first of `count` timestamps of this node's, in microseconds times the number of nodes."""
        first = max(time_ns() // 1_000 * NODES + self._node, self._at + NODES)
        self._at = first + (count - 1) * NODES
        return first

    async def _write(self) -> None:
        """One statement at a time; the watermark moves with each, and by itself when there is nothing to write."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(KEEP_ALIVE_S):
                    await self._more.wait()
            self._more.clear()
            if not self._queue:
                await self._connection.execute(_KEEP_ALIVE, {"at": self._stamp(1), "node": self._node})
            while self._queue:
                batch = [self._queue.popleft() for _ in range(min(BATCH_MAX, len(self._queue)))]
                first = self._stamp(len(batch))
                values = (self._node, first, NODES, self._at, BinaryRecords(pack(batch)))
                await self._connection.execute("SELECT put(%s, %s, %s, %s, %s)", values, prepare=True)

    async def _watch(self) -> None:
        """Mark nodes offline whose watermark stands still."""
        while True:
            await asyncio.sleep(KEEP_ALIVE_S)
            before = (time_ns() // 1_000 - round(OFFLINE_AFTER_S * 1e6)) * NODES
            await self._beside.execute(_MARK_OFFLINE, {"before": before})


class WatermarkReader:
    """Reads up to the lowest watermark; asks again when notified, and every POLL_S."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._after = -1
        self.offset = 0

    async def listen(self) -> None:
        """From now on, appends wake it."""
        await self._connection.execute("LISTEN event")

    async def read(self, max_records: int, wait_s: float) -> LogRecords:
        """See `LogReader.read`."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + wait_s
        while True:
            values = {"after": self._after, "most": max_records}
            rows = await (await self._connection.execute(_READ, values, binary=True, prepare=True)).fetchall()
            if rows:
                self._after = rows[-1][0]
                first, self.offset = self.offset, self.offset + len(rows)
                return [(first + at, record) for at, (_, record) in enumerate(rows)]
            left_s = until_s - loop.time()
            if left_s <= 0:
                return []
            async for _ in self._connection.notifies(timeout=min(POLL_S, left_s), stop_after=1):
                pass

    async def close(self) -> None:
        """See `LogReader.close`."""
        await self._connection.close()
