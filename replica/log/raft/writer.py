"""A writer to the log: what it is given, in order, to whichever node leads."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from replica.log.raft.client import CallFailed, LogClient, within
from replica.log.raft.log_settings import RaftLogSettings
from replica.log.raft.wire import AppendedHere
from replica.notary.errors import LogUnavailable
from replica.notary.records import check_sizes
from replica.notary.tasks import cancelled

_RETRY_S = 0.01
_RECONNECT_S = 0.05  # between two tries of a writer that nobody gives anything
FindLeader = Callable[[], Coroutine[Any, Any, str]]


@dataclass(slots=True)
class _Queued:
    """A record that is not committed yet. `appended`: see `EarlyLogWriter`; `position` is its place in that call."""

    value: bytes
    at_s: float  # when it was handed over
    appended: Callable[[Mapping[int, str]], None] | None = None
    position: int = 0


class RaftWriter:
    """A `LogWriter`: records that arrive during one call make up the next one, so they keep their order.

    Records without an answer are sent again, perhaps to another leader, and may then be in the log twice.
    """

    def __init__(
        self,
        connect_to: Callable[[str], Coroutine[Any, Any, LogClient]],
        settings: RaftLogSettings,
        find_leader: FindLeader,
    ) -> None:
        self._connect_to = connect_to
        self._settings = settings
        self._find_leader = find_leader
        self._queue: deque[_Queued] = deque()
        self._gathered = asyncio.Event()
        self._client: LogClient | None = None
        self._writing: asyncio.Task[None] | None = None
        self._is_closed = False
        self._failed_count = 0

    async def start(self) -> None:
        """Connect to the leader. Raises LogUnavailable."""
        await self._connect()
        self._writing = asyncio.create_task(self._write_for_ever(), name="log writer")

    @property
    def failed_count(self) -> int:
        """See `LogWriter.failed_count`."""
        return self._failed_count

    @property
    def has_ended(self) -> bool:
        """See `LogWriter.has_ended`."""
        return self._is_closed

    @property
    def is_connected(self) -> bool:
        """See `LogWriter.is_connected`."""
        return self._client is not None and not self._client.has_ended

    def append(self, value: bytes) -> None:
        """See `LogWriter.append`."""
        self.append_all((value,))

    def append_all(self, values: Sequence[bytes]) -> None:
        """See `LogWriter.append_all`."""
        self._enqueue(values, None)

    def append_early(self, values: Sequence[bytes], appended: Callable[[Mapping[int, str]], None]) -> None:
        """See `EarlyLogWriter.append_early`."""
        self._enqueue(values, appended)

    def _enqueue(self, values: Sequence[bytes], appended: Callable[[Mapping[int, str]], None] | None) -> None:
        if self._is_closed:
            raise LogUnavailable("the writer is closed")
        check_sizes(values)
        if len(self._queue) + len(values) > self._settings.append_queue_max:
            raise LogUnavailable(f"{len(self._queue)} records wait to be appended")
        now_s = asyncio.get_running_loop().time()
        self._queue.extend([_Queued(value, now_s, appended, position) for position, value in enumerate(values)])
        if values:
            self._gathered.set()

    async def close(self) -> None:
        """See `LogWriter.close`."""
        self._is_closed = True
        self._queue.clear()
        if self._writing is not None:
            await cancelled(self._writing)
        if self._client is not None:
            await self._client.close()

    async def _write_for_ever(self) -> None:
        while True:
            await self._until_gathered()
            batch = self._next_batch()
            if not batch:
                self._gathered.clear()
            elif await self._append(batch):
                for _ in batch:
                    self._queue.popleft()
            else:
                self._give_up()
                await asyncio.sleep(_RETRY_S)

    async def _until_gathered(self) -> None:
        """Wait for records, and meanwhile connect again when the connection ends: the next caller shall not wait."""
        while not self._gathered.is_set():
            if not self.is_connected:
                try:
                    await self._connect()
                except (LogUnavailable, CallFailed):
                    await asyncio.sleep(_RECONNECT_S)
                continue
            assert self._client is not None
            waiting = [asyncio.create_task(self._gathered.wait()), asyncio.create_task(self._client.ended())]
            try:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            finally:
                await cancelled(*waiting)

    async def _connect(self) -> LogClient:
        if self._client is not None:
            await self._client.close()
        self._client = None
        self._client = await self._connect_to(await self._find_leader())
        return self._client

    def _next_batch(self) -> list[_Queued]:
        batch: list[_Queued] = []
        left = self._settings.append_batch_max_mib * 2**20
        for queued in self._queue:
            left -= len(queued.value)
            if batch and (left < 0 or len(batch) == self._settings.append_batch_max):
                break
            batch.append(queued)
        return batch

    async def _append(self, batch: Sequence[_Queued]) -> bool:
        """Whether the records are committed; if not, they may be committed later."""
        try:
            client = self._client or await self._connect()
            early = any(queued.appended is not None for queued in batch)
            on_appended = partial(_report_places, batch) if early else None
            appending = client.append([queued.value for queued in batch], on_appended)
            await within(appending, self._settings.answer_max_s)
        except (LogUnavailable, CallFailed):
            if self._client is not None:
                await self._client.close()
            self._client = None
            return False
        return True

    def _give_up(self) -> None:
        """Drop what has waited too long; it may still appear in the log."""
        oldest_s = asyncio.get_running_loop().time() - self._settings.append_max_s
        while self._queue and self._queue[0].at_s < oldest_s:
            self._queue.popleft()
            self._failed_count += 1


def _report_places(batch: Sequence[_Queued], here: AppendedHere) -> None:
    """Report where the leader has these records, together for each call that handed them over."""
    places: dict[Callable[[Mapping[int, str]], None], dict[int, str]] = {}
    for idx, queued in enumerate(batch, here.first_idx):
        if queued.appended is not None:
            places.setdefault(queued.appended, {})[queued.position] = f"{here.view}.{idx}"
    for appended, found in places.items():
        appended(found)
