"""Published: writes completions of what the log decided to the shared database."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import msgspec

from replica.active.completions import completions_of
from replica.following.apply import Applied
from replica.notary.position import Position
from replica.settings import CoreSettings
from replica.store.interface import ParticipantStore, Published, Row

# The conflicts of one record take up to 0.8 MB. Forty of them in one transaction took 1.9 s, and cost the statement and
# the lock; so a transaction stops here, or after its first run, whose states are bounded.
DETAIL_BYTES_MAX = 1_000_000


class _Unpublished(msgspec.Struct):
    completions: list[Row]
    detail_bytes: int
    position: Position


class Publisher:
    """Publishes the runs it is given, in order, several in one transaction.

    `run` ends when stopped, or with an error: the session's, when the outcome of a transaction is unknown, or
    InvariantBroken when the database contradicts the log.
    """

    def __init__(
        self,
        store: ParticipantStore,
        settings: CoreSettings,
        on_moved: Callable[[], None],
        on_backlog: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._store = store
        self._settings = settings
        self._on_moved = on_moved  # the ledger end has changed
        self._on_backlog = on_backlog  # so many completions are not published yet
        self._queue: deque[_Unpublished] = deque()
        self._arrived = asyncio.Event()
        self._hurry = asyncio.Event()
        self._progress = asyncio.Event()
        self._stopping = False
        self._added = 0  # runs
        self._done = 0
        self._waiting_completions = 0
        self.ledger_end = 0
        self.pruned_to = 0
        self.position: Position | None = None

    def begin(self, published: Published) -> None:
        """Take note of what is published when the activation begins."""
        self.position, self.ledger_end = published.position, published.ledger_end
        self.note_pruned(published.pruned_to)

    def note_pruned(self, pruned_to: int) -> None:
        """Note up to which ledger offset completions may be deleted. It never falls."""
        self.pruned_to = max(self.pruned_to, pruned_to)

    def add(self, applied: Applied) -> None:
        """Queue a run."""
        completions = completions_of(applied)
        detail_bytes = sum([len(completion.detail) for _, completion in completions])
        self._queue.append(_Unpublished(completions, detail_bytes, applied.position))
        self._added += 1
        self._waiting_completions += len(completions)
        self._on_backlog(self._waiting_completions)
        self._arrived.set()
        if self._waiting_completions >= self._settings.publish_batch_max:
            self._hurry.set()

    @property
    def is_full(self) -> bool:
        """Whether more completions wait for the database than may."""
        return self._waiting_completions >= self._settings.publish_backlog_max

    async def flush(self) -> None:
        """Publish what is queued now, without lingering; returns when it is done. Late, if the session is over."""
        target = self._added
        while self._done < target:
            self._hurry.set()
            self._progress.clear()
            await self._progress.wait()

    async def run(self) -> None:
        """Publish until stopped."""
        while not self._stopping:  # asked after each transaction as well: it takes the event back that `stop` has set
            await self._arrived.wait()
            if not self._stopping and not self._hurry.is_set():
                await self._linger()
            if not self._stopping:
                await self._publish_some()

    def stop(self) -> None:
        """Let `run` end after the present transaction; the next active publishes what is still queued."""
        self._stopping = True
        self._arrived.set()
        self._hurry.set()

    async def _linger(self) -> None:
        try:
            async with asyncio.timeout(self._settings.publish_linger_s):
                await self._hurry.wait()
        except TimeoutError:
            pass

    async def _publish_some(self) -> None:
        taken: list[_Unpublished] = []
        completions: list[Row] = []
        detail_bytes = 0
        for item in self._queue:  # whole runs, so that the position fits; at least one
            detail_bytes += item.detail_bytes
            full = len(completions) + len(item.completions) > self._settings.publish_batch_max
            if taken and (full or detail_bytes > DETAIL_BYTES_MAX):
                break
            taken.append(item)
            completions.extend(item.completions)
        position = taken[-1].position
        self.note_pruned(await self._store.publish(completions, position))
        self.position, self.ledger_end = position, position.ledger_offset
        self._on_moved()
        for _ in taken:
            self._queue.popleft()
        self._done += len(taken)
        self._waiting_completions -= len(completions)
        self._on_backlog(self._waiting_completions)
        self._progress.set()
        if not self._queue:
            self._arrived.clear()
            self._hurry.clear()
