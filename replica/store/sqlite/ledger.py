"""An embedded ledger of a replica: completions and ledger offsets, derived from the log it follows, in either role.

Every replica has its own, so no backlog waits for a new active. The file is written on a thread: the follower hands
over what each run decided, and goes on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
import structlog

from replica.notary.errors import InvariantBroken, StoreUnavailable
from replica.notary.position import BEGIN, Position
from replica.notary.tasks import cancelled
from replica.store.interface import Pruned, Published, Row
from replica.store.sqlite.file import Begun, LedgerFile
from replica.store.sqlite.tables import FILE, LedgerDamaged

log = structlog.get_logger()

_T = TypeVar("_T")

_TOGETHER_MAX = 5_000  # completions of one transaction, unless one run has more
_HEARD_S = 1.0  # from a new bound to the first deletion: front ends hear of it meanwhile
CHECKED_TOGETHER = 100  # completions that are read again at once: the thread writes in between
_WAITING_MAX = 50_000  # completions that wait for the disk; then the follower waits


class _Run(msgspec.Struct):
    completions: Sequence[Row]
    begun: Sequence[Begun]
    position: Position


def open_or_make_anew(folder: Path, topic_id: str) -> LedgerFile:
    """The ledger in that folder. One that is damaged, or of another log, is put aside, and a new one begun.

    Only the newest that was put aside is kept. Raises StoreUnavailable when the disk refuses.
    """
    path = folder / FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreUnavailable(f"the ledger's folder: {error}") from None
    try:
        return LedgerFile(path, topic_id)
    except LedgerDamaged as error:
        set_aside(path, str(error))
    return LedgerFile(path, topic_id)


def check_pause_s(ledger_end: int, *, least_per_s: float, within_s: float) -> float | None:
    """How long to wait between two pages that are read again, so that a pass ends in time; None: nothing is read."""
    if not least_per_s:
        return None
    return CHECKED_TOGETHER / max(least_per_s, ledger_end / within_s)


def set_aside(path: Path, detail: str) -> None:
    """Put a damaged ledger aside, with the files that belong to it. Nothing is lost: it follows from the log.

    Raises StoreUnavailable when the disk refuses.
    """
    try:
        for suffix in ("", "-wal", "-shm"):
            part = path.with_name(path.name + suffix)
            if part.exists():
                part.replace(part.with_name(f"{path.name}.damaged{suffix}"))
    except OSError as error:
        raise StoreUnavailable(f"the ledger's folder: {error}") from None
    log.error("ledger_set_aside", detail=detail, file=str(path))


class EmbeddedLedger:
    """Writes what it is fed, in order, several runs in one transaction. `run` ends when stopped, or with an error:
    LedgerDamaged (begin anew), StoreUnavailable (the disk), or InvariantBroken.

    What is fed may begin below the ledger's position, as an index that is made anew does: that is passed over.
    Once it has ended, `feed`, `room` and `reached` raise the error that ended it, or StoreUnavailable.
    """

    def __init__(self, file: LedgerFile, check_pause_s: Callable[[int], float | None] = lambda _: None) -> None:
        """`check_pause_s`: how long to wait between two pages that are read again, by the ledger's end; None: no page
        is."""
        self._file = file
        self._check_pause_s = check_pause_s
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ledger")
        self._queue: deque[_Run] = deque()
        self._waiting = 0
        self._arrived = asyncio.Event()
        self._moved = asyncio.Event()
        self._prunable = asyncio.Event()
        self._prunable.set()
        self._ended: Exception | None = None
        self.progress = file.progress()

    @property
    def backlog(self) -> int:
        """Completions that are not written yet."""
        return self._waiting

    @property
    def has_ended(self) -> bool:
        """Whether nothing is written any more."""
        return self._ended is not None

    @property
    def fed(self) -> Position | None:
        """The position after the newest run that it has or waits for; None for a new ledger."""
        return self._queue[-1].position if self._queue else self.progress.position

    @property
    def fed_offset(self) -> int:
        """The log offset of that position; -1 for none."""
        return _offset_of(self.fed)

    def feed(self, completions: Sequence[Row], begun: Sequence[Begun], after_offset: int, position: Position) -> None:
        """Hand over what the records after `after_offset` and up to `position` decided.

        Raises InvariantBroken when the run begins above what was fed before, which would leave a gap, and when it ends
        at a record that is not the one the ledger has at that offset. Raises what ended the ledger, once it has ended.
        """
        self._require_going()
        fed, fed_offset = self.fed, self.fed_offset
        if after_offset > fed_offset:
            raise InvariantBroken(
                f"the ledger was fed up to offset {fed_offset}, a run begins after offset {after_offset}"
            )
        if fed is not None and position.offset <= fed_offset:
            self._check_same(fed, position)
            return
        new = [row for row in completions if row[1].log_offset > fed_offset]
        self._queue.append(_Run(new, [one for one in begun if one.log_offset > fed_offset], position))
        self._waiting += len(new)
        self._arrived.set()

    async def room(self) -> None:
        """Return once the disk keeps up: the follower waits here, so that what it hands over is bounded.

        Raises what ended the ledger.
        """
        await self._until(lambda: self._waiting < _WAITING_MAX)

    async def reached(self, offset: int) -> Published:
        """The progress once the ledger covers the log up to that offset. Raises what ended the ledger before it did."""
        await self._until(lambda: _offset_of(self.progress.position) >= offset)
        return self.progress

    async def prune(self, up_to: int | None, recorded_before_us: int) -> Pruned:
        """See ParticipantStore.prune; the rows go in the background. Damage that it finds ends `run` as well."""
        pruned = await self._ask(lambda: self._file.prune(up_to, recorded_before_us))
        self.progress = await self._ask(self._file.progress)
        self._prunable.set()
        return pruned

    async def run(self) -> None:
        """Write, delete what was pruned, and read everything again, until stopped."""
        beside = [
            asyncio.create_task(self._delete(), name="ledger pruning"),
            asyncio.create_task(self._check(), name="ledger check"),
        ]
        try:
            while self._ended is None:  # asked after each wait as well: `stop` sets the event
                await self._arrived.wait()
                if self._ended is None:
                    await self._write_some()
        except Exception as error:
            self._end(error)
            raise
        finally:
            self._end(StoreUnavailable("the ledger is not written any more"))
            await cancelled(*beside)
        if isinstance(self._ended, LedgerDamaged):
            raise self._ended

    async def stop(self) -> None:
        """Let `run` end after the present transaction, and close the file. The log has what is not written.

        May be repeated.
        """
        self._end(StoreUnavailable("the ledger has stopped"))
        await asyncio.to_thread(self._thread.shutdown)
        self._file.close()

    async def _delete(self) -> None:
        """Delete the rows below each new bound; first those that an earlier process left."""
        while True:
            await self._prunable.wait()
            self._prunable.clear()
            await asyncio.sleep(_HEARD_S)
            with suppress(StoreUnavailable):  # the next bound, or the next start, tries again
                while await self._ask(self._file.delete_some):
                    pass

    async def _check(self) -> None:
        """Read all completions, page by page, again and again: damage must not wait for an application to need it."""
        after = 0
        while (pause_s := self._check_pause_s(self.progress.ledger_end)) is not None:
            await asyncio.sleep(pause_s)
            with suppress(StoreUnavailable):
                after = await self._ask(partial(self._file.check, after, CHECKED_TOGETHER))

    async def _write_some(self) -> None:
        taken: list[_Run] = []
        completions: list[Row] = []
        for item in self._queue:
            if taken and len(completions) + len(item.completions) > _TOGETHER_MAX:
                break
            taken.append(item)
            completions.extend(item.completions)
        begun = [one for item in taken for one in item.begun]
        position = taken[-1].position
        self.progress = await self._on_thread(lambda: self._file.append(completions, begun, position))
        for _ in taken:
            self._queue.popleft()
        self._waiting -= len(completions)
        if not self._queue:
            self._arrived.clear()
        self._moved.set()

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._require_going()
            self._moved.clear()
            await self._moved.wait()

    def _require_going(self) -> None:
        if self._ended is not None:
            raise self._ended

    def _end(self, error: Exception) -> None:
        """The first error stays: it is the cause of the others."""
        self._ended = self._ended or error
        self._arrived.set()
        self._moved.set()

    async def _ask(self, question: Callable[[], _T]) -> _T:
        """The answer of the file. Raises what ended the ledger, and StoreUnavailable for damage, which ends it."""
        self._require_going()
        try:
            return await self._on_thread(question)
        except LedgerDamaged as error:
            self._end(error)
            raise StoreUnavailable(f"the ledger is damaged: {error}") from None

    async def _on_thread(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    @staticmethod
    def _check_same(before: Position, position: Position) -> None:
        if position.offset == before.offset and position.digest != before.digest:
            raise InvariantBroken(f"the ledger was made from another record at offset {before.offset}")


def _offset_of(position: Position | None) -> int:
    return BEGIN if position is None else position.offset
