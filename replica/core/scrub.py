"""The scrub: a walk through the whole log, slow and in the background, that compares this replica's index with it.

RocksDB's checksums tell of bytes that changed on the disk, once they are read. The scrub reads what nobody asks for,
and finds what has a right checksum and is wrong all the same. It is bounded in records a second, looks at one short run
at a time, and stands back while an active is at work.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import structlog

from ha.clock import Clock
from replica.core.follow import Follower, bounded_runs, open_behind
from replica.core.settings import CoreSettings
from replica.core.walk import Walk, begin_walk, check_complete, decode_walk, encode_walk, room_of, walk_on
from replica.index.interface import Index
from replica.log.interface import LogReader, LogRecords, RequestLog
from replica.notary.errors import LogUnavailable

log = structlog.get_logger()

TICK_S = 0.5
RUN_STATES_MAX = 1_000  # about two milliseconds of the event loop
KEEP_EVERY_S = 60.0  # how often the way is written down; what is not is walked again
READ_MAX_S = 5.0
BOOKMARK = "scrub"  # in the index's folder: it belongs to that index, and goes where that goes


class Scrubber:
    """One replica's scrub. `run` goes on until it is cancelled, or ends with what it found: IndexMismatch, LogRefused,
    IndexUnreadable, each of which must end the process."""

    def __init__(
        self,
        request_log: RequestLog,
        index: Index,
        follower: Follower,
        clock: Clock,
        settings: CoreSettings,
        *,
        bookmark: Path,
        entry_count: Callable[[], int],
        is_busy: Callable[[], bool],
    ) -> None:
        """`bookmark`: the file that the way is written down in. `entry_count`: how many entries the index has."""
        self._log = request_log
        self._index = index
        self._follower = follower
        self._clock = clock
        self._settings = settings
        self._bookmark = bookmark
        self._entry_count = entry_count
        self._is_busy = is_busy
        self._kept_at_s = float("-inf")
        self.walk: Walk | None = None
        self.records = 0  # compared by this process
        self.complete_walks = 0

    def digests(self) -> dict[int, bytes]:
        """Number of records, and the digest of all entries that they made: the same at every replica."""
        return {} if self.walk is None else dict(self.walk.marks)

    async def run(self) -> None:
        """Walk, rest, and walk again. Returns at once where the settings have it off."""
        if not self._settings.scrub_records_per_s:
            return
        while True:
            began_s = self._clock.boottime_s()
            try:
                walk = await self._start()
                await self._walk_to_the_end(walk)
            except LogUnavailable as error:
                log.info("scrub_interrupted", detail=error.detail)
                await self._clock.sleep_s(self._settings.log_retry_s + TICK_S)
                continue
            await self._clock.sleep_s(max(TICK_S, began_s + self._settings.scrub_every_s - self._clock.boottime_s()))

    async def _start(self) -> Walk:
        """Where to go on: from the bookmark, if it is of this log and behind the index's position."""
        while (position := self._follower.position) is None:
            await self._clock.sleep_s(TICK_S)
        walk = self.walk or self._read_bookmark()
        if walk is None or walk.position.topic_id != position.topic_id or walk.position.offset > position.offset:
            walk = begin_walk(position.topic_id)
        self.walk = walk
        return walk

    async def _walk_to_the_end(self, walk: Walk) -> None:
        reader = await open_behind(self._log, walk.position.topic_id, walk.position)
        try:
            while walk.position.offset < self._follower.applied_offset:
                records = await self._next(reader, walk)
                for run in bounded_runs(records, RUN_STATES_MAX):
                    self.walk = walk = walk_on(self._index, walk, run)
                    await self._clock.sleep_s(0)  # let heartbeat and front ends in between two runs
                self.records += len(records)
                self._keep(walk)
            check_complete(walk, self._entry_count())
        finally:
            await reader.close()
        self.complete_walks += 1
        log.info("index_scrubbed", applied_offset=walk.position.offset, entries=walk.entry_count)
        self.walk = begin_walk(walk.position.topic_id, walk)
        self._keep(self.walk, now=True)

    async def _next(self, reader: LogReader, walk: Walk) -> LogRecords:
        """The next few records, once it is their time and nobody waits for an answer."""
        await self._clock.sleep_s(TICK_S)
        while self._is_busy() or not self._follower.reaches_log():
            await self._clock.sleep_s(TICK_S)
        a_tick = max(1, round(self._settings.scrub_records_per_s * TICK_S))
        room = room_of(walk, self._follower.applied_offset, a_tick)
        records = await reader.read(room, READ_MAX_S)
        if not records:
            raise LogUnavailable(f"no record behind offset {walk.position.offset} within {READ_MAX_S} s")
        return records

    def _read_bookmark(self) -> Walk | None:
        try:
            return decode_walk(self._bookmark.read_bytes())
        except OSError:
            return None

    def _keep(self, walk: Walk, now: bool = False) -> None:
        """Write down how far it is, whole or not at all; not synced, because an older way is as good."""
        now_s = self._clock.boottime_s()
        if now or now_s - self._kept_at_s >= KEEP_EVERY_S:
            self._kept_at_s = now_s
            partial = self._bookmark.with_suffix(".partial")
            with suppress(OSError):  # a full disk stops the index, not the scrub
                partial.write_bytes(encode_walk(walk))
                partial.replace(self._bookmark)
