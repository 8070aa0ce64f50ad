"""What tools read from the embedded ledgers of a machine, over connections that cannot write.

A replica may write its file meanwhile, or make it anew. Each question reads one state of one file: that which covers
most of the log. A replica that lags, or has just begun a new file, has fewer completions than its peers, never others.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import msgspec

from replica.notary.codes import Code
from replica.notary.errors import ConfigError, LogTruncated, StoreMismatch, StoreUnavailable
from replica.notary.formats import Formats
from replica.notary.marks import ContradictedMark
from replica.notary.position import BEGIN
from replica.notary.words import NOTHING_SAID, UNSAID, NewWord, WordsLog, replace, value_of
from replica.store.bulletin import NO_PAUSE_OF_SERVICE, PastActivation, Pause
from replica.store.facts import PAGE_ROWS, Export, PublishedState, StoreStatus
from replica.store.interface import Row
from replica.store.sqlite.file import READ, named, position_of
from replica.store.sqlite.tables import VERSION, LedgerDamaged, connect, restored
from replica.store.trail import head_of
from replica.store.words import (
    ENDED,
    FORMATS,
    PAUSE,
    TRAIL,
    Ended,
    ended,
    ends_in,
    formats_in,
    formats_raised,
    pause_in,
    paused,
    slot_of,
    unreadable_in,
)

RELEASED = "released the lease"
COVERS_WITHIN_S = 5.0  # a ledger of a replica that runs covers the log within moments
_LOOK_S = 0.05
_PROGRESS = "SELECT topic_id, position, ledger_end, pruned_to FROM progress"
_BEGUN = "SELECT epoch, replica, log_offset, stamp_us FROM activation ORDER BY epoch DESC LIMIT ?"


def read_status(files: Sequence[Path]) -> StoreStatus:
    """How far the ledger is. Raises StoreUnavailable, and StoreMismatch where this machine has none."""
    with _opened(files) as connection:
        topic_id, position, ledger_end, _ = _progress(connection)
        newest = next((one for one in _history(_begun(connection, 2)) if one.replica), None)
        return StoreStatus(
            f"sqlite:{topic_id}",
            topic_id,
            0 if newest is None else newest.epoch,
            None if newest is None else newest.replica,
            None if newest is None else newest.granted_at,
            _offset(position),
            ledger_end,
            VERSION,
        )


@contextmanager
def export_completions(files: Sequence[Path]) -> Iterator[Export]:
    """See Ledgers.export: what one ledger has when the export begins."""
    with _opened(files) as connection:
        topic_id, position, ledger_end, pruned_to = _progress(connection)
        rows = _rows(connection, pruned_to, ledger_end)
        yield Export(topic_id, _offset(position), ledger_end, rows, pruned_to)


def export_range(file: Path, after: int, until: int) -> Iterator[Row]:
    """Completions after a ledger offset, up to and including another one. Raises as `export_completions` does."""
    with _opened([file]) as connection:
        yield from _rows(connection, after, until)


def published_state(file: Path) -> PublishedState:
    """How far the ledger is. Raises StoreUnavailable and StoreMismatch."""
    with _opened([file]) as connection:
        return PublishedState(*_progress(connection))


class LedgerBoard:
    """See Board. Who led is in the ledgers of this machine; what operators and holders said is in the log.

    What needs the log raises LogUnavailable.
    """

    def __init__(self, files: Sequence[Path], words: WordsLog | None) -> None:
        """`words`: None for a log that has none, which only tests use."""
        self._files = files
        self._words = words

    async def paused(self) -> Pause | None:
        """See Board."""
        return None if self._words is None else pause_in(await value_of(self._words, PAUSE))

    async def pause(self, reason: str) -> Pause | None:
        """See Board. Raises StoreUnavailable where no replica of this machine follows the log."""
        words = self._log("pause")
        keeper = await self._newest_holder(words)
        if keeper is None:
            return None
        now = datetime.now(UTC)
        _, after = await replace(words, PAUSE, lambda value: paused(value, keeper, reason, now), always=True)
        return pause_in(after)

    async def resume(self) -> Pause | None:
        """See Board. Said also where nothing is paused, so that a pause that is still on its way comes too late."""
        before, _ = await replace(self._log("resume"), PAUSE, lambda _: b"", always=True)
        return pause_in(before)

    async def pause_service(self, reason: str) -> Pause | None:
        """See Board."""
        raise ConfigError(NO_PAUSE_OF_SERVICE, Code.NOT_POSSIBLE_NOW)

    async def resume_service(self) -> Pause | None:
        """See Board."""
        raise ConfigError(NO_PAUSE_OF_SERVICE, Code.NOT_POSSIBLE_NOW)

    async def history(self, limit: int) -> list[PastActivation]:
        """See Board. An activation begins when its barrier is appended, by the log's clock; it ends when its holder
        says, else when the next one begins."""
        try:
            begun = await asyncio.to_thread(self._read_begun, 2 * limit)
        except StoreMismatch:
            return []
        if self._words is None:
            return _shown(_history(begun), limit)
        words = await self._words.words(ENDED)
        try:
            appended = await self._words.appended_us([one.log_offset for one in begun])
        except LogTruncated:  # a ledger of another log: its replica has not run since a restore
            appended = []
        ends, unreadable = ends_in(words), unreadable_in(words)
        found = _shown(_history(begun, appended), limit)
        return [_told(one, ends.get(one.epoch), unreadable.get(slot_of(one.epoch))) for one in found]

    def _read_begun(self, limit: int) -> list[_Begun]:
        with _opened(self._files) as connection:
            return _begun(connection, limit)

    async def formats(self) -> Formats:
        """See Board."""
        said = b"" if self._words is None else await value_of(self._words, FORMATS)
        return formats_in(said)

    async def raise_formats(self, formats: Formats) -> Formats:
        """See Board: whoever may say a word may do it."""
        _, after = await replace(self._log("format raise"), FORMATS, lambda value: formats_raised(value, formats))
        return formats_in(after)

    async def end_epoch(self, epoch: int, replica: str, reason: str, age_s: float) -> None:
        """See Board."""
        if self._words is not None:
            end = Ended(epoch, replica, reason, datetime.now(UTC) - timedelta(seconds=age_s))
            await replace(self._words, slot_of(epoch), lambda value: ended(value, end))

    async def contradicted_marks(self) -> list[ContradictedMark]:
        """See ContradictedMarks. None: a log that has lost records would have lost these."""
        return []

    async def leave_mark(self, left: ContradictedMark) -> None:
        """See ContradictedMarks. Peers' health documents and seen files tell it."""

    async def take_mark_away(self, left: ContradictedMark) -> None:
        """See ContradictedMarks."""

    async def newest_of_trail(self) -> bytes | None:
        """See TrailKeeper."""
        return await value_of(self._log("trail"), TRAIL) or None

    async def trail(self, after: int, limit: int) -> list[bytes]:
        """See TrailKeeper. Goes back from the newest word: each names the entry of the one before."""
        log = self._log("trail")
        version = (await log.words(TRAIL)).get(TRAIL, UNSAID).version
        found: deque[bytes] = deque(maxlen=limit)
        while version != NOTHING_SAID:
            said = await log.said_at(version)
            if said is None or said.name != TRAIL:
                raise StoreUnavailable(f"the log node does not have entry {version} of the log, a word of the trail")
            if head_of(said.value).number <= after:
                break
            found.appendleft(said.value)
            version = said.replaces
        return list(found)

    async def extend_trail(self, number: int, line: bytes) -> bool:
        """See TrailKeeper."""
        log = self._log("trail")
        word = (await log.words(TRAIL)).get(TRAIL, UNSAID)
        if head_of(word.value or None).number != number - 1:
            return False
        return (await log.say(NewWord(TRAIL, word.version, line))).value == line

    def _log(self, command: str) -> WordsLog:
        if self._words is None:
            raise ConfigError(f"notary {command} needs log nodes, or a database", Code.NOT_POSSIBLE_NOW)
        return self._words

    async def _newest_holder(self, words: WordsLog) -> str | None:
        """Who had the lease last, by a ledger of this machine that has all that the log had at the call."""
        end = await words.end_offset()
        until_s = time.monotonic() + COVERS_WITHIN_S
        while (status := await asyncio.to_thread(read_status, self._files)).published_offset < end - 1:
            if time.monotonic() >= until_s:
                raise StoreUnavailable(
                    f"the ledgers of this machine end at log offset {status.published_offset}, the log at {end - 1}:"
                    " call it where a replica runs"
                )
            await asyncio.sleep(_LOOK_S)
        return status.replica


def _told(one: PastActivation, end: Ended | None, unreadable: str | None) -> PastActivation:
    """The activation with its holder's own word about its end, or that there is one which cannot be read."""
    if end is None and unreadable is not None:
        return msgspec.structs.replace(one, end_reason=unreadable)
    if end is None or end.replica != one.replica:
        return one
    changes = {"ended_at": end.ended_at, "end_reason": end.reason}
    return msgspec.structs.replace(one, **changes)


@contextmanager
def _opened(files: Sequence[Path]) -> Iterator[sqlite3.Connection]:
    """The file that covers most of the log, in one transaction. One that is damaged is made anew by its replica."""
    found = [file for file in files if os.path.exists(file)]
    if not found:
        raise StoreMismatch("no replica of this machine has a ledger yet: start one", Code.NOT_POSSIBLE_NOW)
    problem: Exception | None = None
    readable: list[tuple[int, sqlite3.Connection]] = []
    with ExitStack() as stack:
        for file in found:
            try:
                connection = stack.enter_context(closing(connect(file, writes=False)))
                connection.execute("BEGIN")
                readable.append((_offset(_progress(connection)[1]), connection))
            except (sqlite3.Error, LedgerDamaged) as error:
                problem = error
        if problem is not None and not readable:
            raise _unreadable(problem)
        try:
            yield max(readable, key=itemgetter(0))[1]
        except (sqlite3.Error, LedgerDamaged) as error:
            raise _unreadable(error) from None


def _unreadable(error: Exception) -> StoreUnavailable:
    return StoreUnavailable(
        f"the ledger could not be read: {named(error) if isinstance(error, sqlite3.Error) else error}"
    )


def _progress(connection: sqlite3.Connection) -> tuple[str, bytes | None, int, int]:
    found = connection.execute(_PROGRESS).fetchone()
    if found is None:
        raise LedgerDamaged("it does not say how far it goes")
    topic_id, position, ledger_end, pruned_to = found
    return topic_id, position, ledger_end, pruned_to


def _offset(position: bytes | None) -> int:
    found = position_of(position)
    return BEGIN if found is None else found.offset


class _Begun(NamedTuple):
    """An activation, or the release of one, whose `replica` is empty; and when it began, as far as stamps tell.
    Times are microseconds UTC."""

    epoch: int
    replica: str
    log_offset: int
    stamp_us: int  # the highest one before it; where there is none, that of the first completion
    until_us: int | None  # the next higher one, if any: it began before that


def _begun(connection: sqlite3.Connection, limit: int) -> list[_Begun]:
    """The newest, newest first."""
    position = position_of(_progress(connection)[1])
    newest_us, until_us = 0 if position is None else position.stamp_us, None
    first_us = next((row[1].recorded_us for row in _rows(connection, 0, 1)), 0)
    found: list[_Begun] = []
    for epoch, replica, log_offset, stamp_us in connection.execute(_BEGUN, (limit,)):
        until_us = newest_us if newest_us > stamp_us else until_us
        found.append(_Begun(epoch, replica, log_offset, max(stamp_us, first_us), until_us))
        newest_us = stamp_us
    return found


def _began_at(one: _Begun, appended_us: int | None) -> datetime:
    """When its barrier was appended; by stamps where that is not known.

    A log that was restored has a copy of the barrier, which is younger than the requests of its activation.
    """
    if appended_us is None or (one.until_us is not None and appended_us > one.until_us):
        appended_us = one.stamp_us
    return datetime.fromtimestamp(appended_us / 1e6, UTC)


def _history(begun: Sequence[_Begun], appended_us: Sequence[int] = ()) -> list[PastActivation]:
    """Activations and releases, newest first. Each is over where the next one begins."""
    found: list[PastActivation] = []
    successor: tuple[str, datetime] | None = None
    for one, at_us in zip_longest(begun, appended_us):
        began = _began_at(one, at_us)
        over_by, over_at = successor or (None, None)
        if over_by == "":  # its own release
            found.append(PastActivation(one.epoch, one.replica, began, over_at, over_at, RELEASED, None, None))
        else:
            found.append(PastActivation(one.epoch, one.replica, began, over_at, None, None, over_at, over_by))
        successor = one.replica, began
    return found


def _shown(history: Sequence[PastActivation], limit: int) -> list[PastActivation]:
    """Without the releases, which are of nobody."""
    return [one for one in history if one.replica][:limit]


def _rows(connection: sqlite3.Connection, after: int, until: int) -> Iterator[Row]:
    """The completions after `after` up to `until`, page by page; those that are pruned are left out."""
    while after < until:
        page = connection.execute(READ, (after, until, PAGE_ROWS)).fetchall()
        yield from map(restored, page)
        if not page:
            return
        after = page[-1][0]
