"""`notary` with a request log of limited throughput: `python -m tests.faults.slow_log replica ...`.

So a load that hardly uses the processor can exceed the capacity of a real replica.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from unittest.mock import patch

from replica.active.worker import Worker
from replica.cli.main import main
from replica.log.interface import LogWriter, RequestLog
from replica.log.kafka.log import KafkaLog
from replica.log.postgres.log import PostgresLog
from replica.log.raft.log import RaftLog

RATE_VARIABLE = "NOTARY_TEST_LOG_RECORDS_PER_S"
_CATCH_UP_S = 0.5  # a loop that was held up for no longer than this keeps the rate


class SlowWriter:
    """Passes records on at a steady rate, in order. See LogWriter; records that are left at the end are purged."""

    def __init__(self, inner: LogWriter, per_s: float) -> None:
        self._inner = inner
        self._per_s = per_s
        self._queue: deque[bytes] = deque()
        self._loop = asyncio.get_running_loop()
        self._free_at_s = 0.0
        self._due: asyncio.TimerHandle | None = None

    @property
    def failed_count(self) -> int:
        """See LogWriter."""
        return self._inner.failed_count

    @property
    def is_connected(self) -> bool:
        return self._inner.is_connected

    @property
    def has_ended(self) -> bool:
        """See LogWriter."""
        return self._inner.has_ended

    def append(self, value: bytes) -> None:
        """See LogWriter."""
        self._queue.append(value)
        if self._due is None:
            self._go_on()

    def append_all(self, values: Sequence[bytes]) -> None:
        """See LogWriter."""
        for value in values:
            self.append(value)

    def _go_on(self) -> None:
        """Pass on what is due, several records at a time if the loop is late."""
        now_s = self._loop.time()
        self._free_at_s = max(self._free_at_s, now_s - _CATCH_UP_S)
        while self._queue and self._free_at_s <= now_s:
            self._inner.append(self._queue.popleft())
            self._free_at_s += 1 / self._per_s
        self._due = self._loop.call_at(self._free_at_s, self._go_on) if self._queue else None

    async def close(self) -> None:
        """See LogWriter."""
        self._queue.clear()
        if self._due is not None:
            self._due.cancel()
        await self._inner.close()


def slowed(kind: type[RequestLog]) -> AbstractContextManager[object]:
    """While the block runs, writers of a kind of log are slow. A claim to a lease and its signs of life are not."""
    open_fast_writer = kind.open_writer

    async def open_slow_writer(log: RequestLog) -> LogWriter:
        """See RequestLog.open_writer."""
        return _slow(await open_fast_writer(log))

    return patch.object(kind, "open_writer", open_slow_writer)


def slowed_workers() -> AbstractContextManager[object]:
    """While the block runs, workers' writers are slow, also where they are of the kind that claims use."""
    open_fast_writer = Worker._open_writer

    async def open_slow_writer(worker: Worker) -> LogWriter:
        writer = await open_fast_writer(worker)
        return writer if isinstance(writer, SlowWriter) else _slow(writer)

    return patch.object(Worker, "_open_writer", open_slow_writer)


def _slow(writer: LogWriter) -> SlowWriter:
    return SlowWriter(writer, float(os.environ[RATE_VARIABLE]))


if __name__ == "__main__":
    with slowed(KafkaLog), slowed(PostgresLog), slowed(RaftLog), slowed_workers():
        main()
