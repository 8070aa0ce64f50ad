"""The scrub: reads the whole log again in the background, and compares this replica's index with it.

RocksDB's checksums show bytes that changed on the disk, but only when they are read. The scrub also reads entries that
no request reads, and finds wrong entries whose checksum is right. Each pass has a time limit, which sets its pace
(pace.py). It checks one short run at a time, and pauses while an active has work or the replica lags.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import structlog

from ha.clock import Clock
from replica.following.follower import Follower
from replica.following.index_check import (
    IndexCheck,
    begin_check,
    check_complete,
    continue_check,
    decode_check,
    encode_check,
    room_of,
)
from replica.following.log_reading import bounded_runs, open_after
from replica.following.pace import Pace, choose_pace, room_for
from replica.health import ScrubProgress
from replica.index.interface import Index
from replica.log.interface import LogReader, LogRecords, RequestLog
from replica.notary.errors import IndexMismatch, LogUnavailable
from replica.notary.position import BEGIN
from replica.notary.salvage import NO_SALVAGES, Salvages
from replica.settings import CoreSettings

log = structlog.get_logger()

TICK_S = 0.5
RUN_STATES_MAX = 1_000  # about two milliseconds of the event loop
RUN_RECORDS_MAX = 1_000
KEEP_EVERY_S = 60.0  # how often progress is stored; what is not stored is checked again
READ_MAX_S = 5.0
BOOKMARK = "scrub"  # in the index's folder: it belongs to that index, and goes where that goes


class Scrubber:
    """One replica's scrub. `run` goes on until it is cancelled, or raises what it found: IndexMismatch, LogRefused or
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
        is_busy: Callable[[], bool],
        salvages: Salvages = NO_SALVAGES,
        distrust_filter: Callable[[], bool] = lambda: False,
    ) -> None:
        """`bookmark`: the file that stores the progress. `distrust_filter`: take the index's filter out of use, and say
        whether it was in use; then what differs is compared once more."""
        self._log = request_log
        self._index = index
        self._follower = follower
        self._clock = clock
        self._settings = settings
        self._bookmark = bookmark
        self._is_busy = is_busy
        self._salvages = salvages
        self._distrust_filter = distrust_filter
        self._kept_at_s = float("-inf")
        self.check: IndexCheck | None = None
        self.pace = Pace(0.0, 0.0)  # as of the last tick; nothing is wanted between two passes
        self._record_s = 0.0  # how long the event loop was held up by each record lately
        self.records = 0  # compared by this process
        self.complete_walks = 0

    def digests(self) -> dict[int, bytes]:
        """Digest of all entries, by the number of records that made them: the same at every replica."""
        return {} if self.check is None else dict(self.check.marks)

    @property
    def left_records(self) -> int:
        """What this pass has not compared yet."""
        checked = BEGIN if self.check is None else self.check.position.offset
        return max(0, self._follower.applied_offset - checked)

    @property
    def age_s(self) -> float:
        """For how long this pass has been under way, seconds; 0 between two passes."""
        if self.check is None or not self.check.began_us:
            return 0.0
        return max(0.0, (self._clock.wall_us() - self.check.began_us) / 1e6)

    @property
    def within_s(self) -> float:
        """How long a pass may take, seconds."""
        return self._settings.scrub_within_s

    def progress(self) -> ScrubProgress:
        """How far this pass is, for people: records and seconds."""
        applied = self._follower.applied_offset + 1
        return {
            "records": applied - self.left_records,
            "of_records": applied,
            "age_s": round(self.age_s, 1),
            "within_s": self.within_s,
            "rate_per_s": round(self.pace.rate_per_s, 1),
            "wanted_per_s": round(self.pace.wanted_per_s, 1),
            "complete_walks": self.complete_walks,
        }

    async def run(self) -> None:
        """Check, rest, and check again. Returns at once where the settings have it off."""
        if not self._settings.scrub_records_per_s:
            return
        while True:
            began_s = self._clock.boottime_s()
            try:
                check = await self._start()
                await self._check_to_the_end(check)
            except LogUnavailable as error:
                log.info("scrub_interrupted", detail=error.detail)
                await self._clock.sleep_s(self._settings.log_retry_s + TICK_S)
                continue
            await self._clock.sleep_s(max(TICK_S, began_s + self._settings.scrub_every_s - self._clock.boottime_s()))

    async def _start(self) -> IndexCheck:
        """The check to continue: from the bookmark, if it belongs to this log and is not past the index's position."""
        while (position := self._follower.position) is None:
            await self._clock.sleep_s(TICK_S)
        check = self.check or self._read_bookmark()
        if check is None or check.position.topic_id != position.topic_id or check.position.offset > position.offset:
            check = begin_check(position.topic_id)
        if not check.began_us:
            check = msgspec.structs.replace(check, began_us=self._clock.wall_us())
        self.check = check
        return check

    async def _check_to_the_end(self, check: IndexCheck) -> None:
        reader = await open_after(self._log, check.position.topic_id, check.position)
        try:
            while check.position.offset < self._follower.applied_offset:
                check = await self._check_a_tick(reader, check, await self._next_tick())
                self._keep(check)
            check_complete(check, self._index.entry_count)
        finally:
            self.pace = Pace(0.0, 0.0)
            await reader.close()
        self.complete_walks += 1
        log.info("index_scrubbed", applied_offset=check.position.offset, entries=check.entry_count)
        self.check = begin_check(check.position.topic_id, check)
        self._keep(self.check, now=True)

    async def _next_tick(self) -> int:
        """Wait for the next tick with room; how many records it may have."""
        while True:
            await self._clock.sleep_s(TICK_S)
            self.pace = choose_pace(
                self.left_records,
                self.within_s - self.age_s,
                within_s=self.within_s,
                least_per_s=self._settings.scrub_records_per_s,
                room_per_s=self._room_per_s(),
            )
            if self.pace.rate_per_s > 0:
                return max(1, round(self.pace.rate_per_s * TICK_S))

    def _room_per_s(self) -> float:
        return room_for(
            is_busy=self._is_busy(),
            reaches_log=self._follower.reaches_log(),
            lag_records=self._follower.lag_records,
            lag_max=self._settings.read_batch_max,
            record_s=self._record_s,
        )

    async def _check_a_tick(self, reader: LogReader, check: IndexCheck, records_max: int) -> IndexCheck:
        """Compare up to `records_max` records; stop early when other work needs the replica."""
        left = records_max
        while left > 0 and check.position.offset < self._follower.applied_offset and self._room_per_s() > 0:
            records = await self._read(reader, check, min(left, RUN_RECORDS_MAX))
            for run in bounded_runs(records, RUN_STATES_MAX):
                began_s = self._clock.boottime_s()
                self.check = check = self._compare(check, run)
                self._note_cost((self._clock.boottime_s() - began_s) / len(run))
                await self._clock.sleep_s(0)  # let heartbeat and front ends in between two runs
            self.records += len(records)
            left -= len(records)
        return check

    def _compare(self, check: IndexCheck, run: LogRecords) -> IndexCheck:
        """Look-ups ask the filter as well, so the difference may be its."""
        try:
            return continue_check(self._index, check, run, self._salvages)
        except IndexMismatch:
            if not self._distrust_filter():
                raise
        return continue_check(self._index, check, run, self._salvages)

    async def _read(self, reader: LogReader, check: IndexCheck, records_max: int) -> LogRecords:
        records = await reader.read(room_of(check, self._follower.applied_offset, records_max), READ_MAX_S)
        if not records:
            raise LogUnavailable(f"no record after offset {check.position.offset} within {READ_MAX_S} s")
        return records

    def _note_cost(self, record_s: float) -> None:
        self._record_s += 0.1 * (record_s - self._record_s)  # of the last ten runs or so

    def _read_bookmark(self) -> IndexCheck | None:
        try:
            return decode_check(self._bookmark.read_bytes())
        except OSError:
            return None

    def _keep(self, check: IndexCheck, now: bool = False) -> None:
        """Store the progress, whole or not at all. It is not synced, because older progress is as good."""
        now_s = self._clock.boottime_s()
        if now or now_s - self._kept_at_s >= KEEP_EVERY_S:
            self._kept_at_s = now_s
            partial = self._bookmark.with_suffix(".partial")
            with suppress(OSError):  # a full disk stops the index, not the scrub
                partial.write_bytes(encode_check(check))
                partial.replace(self._bookmark)
