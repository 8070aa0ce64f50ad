"""Follows the log: reads on from the applied position and applies records, whether the replica is active or passive."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import structlog

from ha.clock import Clock
from replica.following.apply import Applied, Applier
from replica.following.log_reading import bounded_runs, end_after, known_log, open_after, record_at, require_applied
from replica.following.void_lines import VoidLines
from replica.index.interface import Index
from replica.log.interface import LogInDatabase, LogReader, LogRecords, RequestLog
from replica.notary.codes import Code
from replica.notary.errors import LogLeaderChanged, LogRefused, LogUnavailable, NotaryError
from replica.notary.formats import Formats, of_barrier
from replica.notary.granters import database_of
from replica.notary.position import BEGIN, Position
from replica.notary.records import BarrierRecord
from replica.notary.salvage import NO_SALVAGES, Salvages
from replica.settings import CoreSettings
from replica.telemetry.core_spans import UNTRACED, Trace

log = structlog.get_logger()

_RETURN_S = 0.05  # after a connection that worked has ended
_NEVER = float("-inf")
_HAZARDS_MAX_S = 0.5  # the log's end is not asked meanwhile
GATHER_FROM = 16  # records in one read: fewer came one by one, and somebody waits for each


async def no_wait() -> None:
    """There is room for the next run at once."""


class Follower:
    """Reads and applies the log for one replica.

    `run` goes on until it is cancelled. It retries an unreachable log for ever. A refused log, an unreadable index or a
    newer format ends it with the error, which must end the process.
    """

    def __init__(
        self,
        request_log: RequestLog,
        index: Index,
        clock: Clock,
        settings: CoreSettings,
        on_applied: Callable[[Applied], None],
        *,
        require: Callable[[RequestLog], Awaitable[object]],
        trace: Trace = UNTRACED,
        salvages: Salvages = NO_SALVAGES,
        room: Callable[[], Awaitable[None]] = no_wait,
        on_assured: Callable[[], None] = lambda: None,
        on_opened: Callable[[], Awaitable[None]] = no_wait,
    ) -> None:
        """`require` is awaited before a log is read from its start: it raises where it may not be served from.
        `on_applied` is called after each run; `room` is awaited next: it returns when another run may follow.
        `on_opened` is awaited each time the log was opened, before it is read on: it raises where the log lost records.
        `on_assured` is called when `assured` becomes true."""
        self._log = request_log
        self._index = index
        self._clock = clock
        self._settings = settings
        self._on_applied = on_applied
        self._trace = trace
        self._salvages = salvages
        self._room = room
        self._on_assured = on_assured
        self._on_opened = on_opened
        self._require = require
        self.assured = False  # the record at the applied position was found in the log that is being read
        self.contradicted: Position | None = None  # one of this index, which the log does not have
        self._applier: Applier | None = None
        self._formats = Formats()
        self._void_lines = VoidLines()
        self._moved = asyncio.Event()
        self._hurry = asyncio.Event()
        self._gather_s = 0.0
        self._known_end = 0
        self._reached_at_s = _NEVER
        self._moved_at_s = _NEVER
        self._topic_id: str | None = None
        self._check_at_s = _NEVER
        self.hazards: Sequence[str] = ()  # what is unsafe about the log, as last seen
        self._owes = False  # a reader returned nothing although the log goes on; until a reader returns records

    @property
    def position(self) -> Position | None:
        """The applied position; None until the log was first reached."""
        return None if self._applier is None else self._applier.position

    @property
    def formats(self) -> Formats:
        """The newest formats of all barriers in force that were applied here, since the start at least. The newest
        barrier may name older ones: a replica on a primary that was succeeded may not know what was raised since."""
        position = self.position
        return self._formats if position is None else self._formats.raised(of_barrier(position.barrier))

    @property
    def applied_offset(self) -> int:
        """Offset of the newest applied record; -1 when there is none."""
        return BEGIN if self._applier is None else self._applier.position.offset

    @property
    def log_end_offset(self) -> int:
        """The offset after the newest record known to be in the log."""
        return max(self._known_end, self.applied_offset + 1)

    @property
    def lag_records(self) -> int:
        """Records known to be in the log and not applied here."""
        return max(0, self._known_end - 1 - self.applied_offset)

    @property
    def rules_in_force(self) -> int:
        """By the newest barrier that was read; 0: none."""
        position = self.position
        return 0 if position is None or position.barrier is None else position.barrier.rules_version

    def hurry(self, hurry: bool, gather_s: float = 0.0) -> None:
        """Read each record as soon as it arrives (true: an active must), or in larger runs, which cost less (false).

        `gather_s`: in a hurry, the time from one run to the next, while many records come. Others' records come at all
        times, and each run costs as much as several records.
        """
        self._gather_s = gather_s
        (self._hurry.set if hurry else self._hurry.clear)()

    def reaches_log(self) -> bool:
        """Whether the log answered lately, and returns the records that it has."""
        return not self._owes and self._is_recent(self._reached_at_s)

    def moved_lately(self) -> bool:
        """Whether a record was read lately: then the log accepts records and returns them to followers."""
        return self._is_recent(self._moved_at_s)

    def _is_recent(self, at_s: float) -> bool:
        return self._clock.boottime_s() - at_s < self._settings.log_stall_max_s

    async def run(self) -> None:
        """Read and apply for ever."""
        while True:
            began_s = self._clock.boottime_s()
            try:
                await self._session()
            except LogLeaderChanged as error:  # the session begins by finding the record at the applied position
                log.info("log_leader_changed", detail=error.detail, applied_offset=self.applied_offset)
            except LogUnavailable as error:
                log.warning("log_unreachable", detail=error.detail, applied_offset=self.applied_offset)
                retry_s = self._settings.log_retry_s
                worked = self._clock.boottime_s() - began_s > retry_s
                await self._clock.sleep_s(min(_RETURN_S, retry_s) if worked else retry_s)

    async def wait_for(self, condition: Callable[[Position], bool]) -> Position:
        """The applied position once it meets the condition. The caller sets the deadline."""
        while True:
            position = self.position
            if position is not None and condition(position):
                return position
            self._moved.clear()
            await self._moved.wait()

    def look_again(self) -> None:
        """Let everybody who waits look at the condition again: it depends on more than the position."""
        self._moved.set()

    async def _session(self) -> None:
        if (known := self._index.position()) is not None and known.barrier is not None:
            self._require_database(known.barrier)
        # An unsafe log is refused at the start. Later it is only reported: all would end, and no record return.
        topic_id = self._topic_id = self._topic_id or await self._identity()
        applier = self._applier or Applier(self._index, topic_id, self._salvages)
        if applier.position.offset == BEGIN:
            await self._require(self._log)
        self._applier = applier
        self._moved.set()  # from here on there is a position, also while the log is empty
        reader = await self._open_after(topic_id, self._applier.position)
        try:
            await self._on_opened()
        except BaseException:
            await reader.close()
            raise
        self.assured = True
        self._on_assured()
        watch = asyncio.create_task(self.watch_end())
        silent_s = 0.0
        try:
            while True:
                records = await reader.read(self._settings.read_batch_max, self._settings.read_wait_s)
                read_at_s = self._clock.boottime_s()
                silent_s = self.silent_s(silent_s, len(records))
                for run in bounded_runs(records, self._settings.read_batch_states_max):
                    self._apply(self._applier, run)
                    await self._room()
                    await asyncio.sleep(0)  # let heartbeat and front ends in between two runs
                if watch.done():
                    watch.result()
                if len(records) < self._settings.read_batch_max:
                    await self._pause(len(records), read_at_s)
        finally:
            self.assured = False
            watch.cancel()  # not awaited: a killed process of the simulator ends here, whenever it is collected
            await reader.close()

    async def _open_after(self, topic_id: str, position: Position) -> LogReader:
        try:
            return await open_after(self._log, topic_id, position)
        except LogRefused:
            self.contradicted = position
            raise

    async def reread(self) -> None:
        """Find the record at the applied position once more, as a writer was opened that may have reached another
        server. Raises LogTruncated, LogRefused and LogUnavailable."""
        position = self.position
        if position is None or not self.assured:
            raise LogUnavailable("the log is not read just now")
        if position.offset > BEGIN:
            require_applied(await record_at(self._log, position.offset), position)

    async def _identity(self) -> str:
        return await known_log(self._log, self._clock, self._settings.log_retry_s)

    def silent_s(self, silent_s: float, records: int) -> float:
        """How long the reader has returned nothing although the log is known to have more, seconds.

        Raises LogUnavailable when that is too long. A reader may hang on a broker that reports no error and has nothing
        new, such as one that has lost its leadership. The sum counts waits, not the time, so that the reader of a
        suspended process is not blamed for the suspension.
        """
        if records or not self.lag_records:
            return 0.0
        silent_s += self._settings.read_wait_s
        if silent_s >= self._settings.log_stall_max_s:
            self._owes = True
            found = f"no record after offset {self.applied_offset} for {silent_s:g} s"
            raise LogUnavailable(f"{found}, and the log ends at {self._known_end}")
        return silent_s

    async def _pause(self, records: int, read_at_s: float) -> None:
        """Let records gather, in a hurry only where many come."""
        if self._hurry.is_set():
            gather_s = read_at_s + self._gather_s - self._clock.boottime_s()
            if records >= GATHER_FROM and gather_s > 0:
                await self._clock.sleep_s(gather_s)
        else:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.standby_read_pause_s):
                    await self._hurry.wait()

    def _apply(self, applier: Applier, records: LogRecords) -> None:
        began_us = self._clock.wall_us()
        applied = applier.apply(records)
        self._trace.judged(applied.decided(), began_us)
        self._reached_at_s = self._moved_at_s = self._clock.boottime_s()
        self._owes = False
        self._void_lines.take(applied.reading.voids, self._reached_at_s)
        for barrier in (found.record for found in applied.reading.barriers):
            self._require_database(barrier)
            self._formats = self._formats.raised(of_barrier(barrier))
            log.info("barrier_in_force", epoch=barrier.epoch, replica=barrier.replica, granter=str(barrier.granter))
        self._moved.set()
        self._on_applied(applied)

    def _require_database(self, barrier: BarrierRecord) -> None:
        """A log that lies in the database of this barrier is not read from an older primary of it."""
        database = database_of(barrier.granter)
        if isinstance(self._log, LogInDatabase) and database is not None:
            self._log.require_database(str(database))

    async def watch_end(self) -> None:
        while True:
            applied_offset = self.applied_offset  # before asking: it moves on meanwhile
            self._known_end = await end_after(self._log, applied_offset)
            self._reached_at_s = self._clock.boottime_s()
            self._owes = self._owes and self.lag_records > 0
            await self._look_for_hazards()
            await self._clock.sleep_s(self._settings.read_wait_s)

    async def _look_for_hazards(self) -> None:
        """Ask from time to time whether the log is safe. No answer changes nothing: the broker may be away a while."""
        now_s = self._clock.boottime_s()
        if now_s < self._check_at_s:
            return
        self._check_at_s = now_s + self._settings.log_check_every_s
        with suppress(NotaryError, TimeoutError):
            async with asyncio.timeout(_HAZARDS_MAX_S):
                found, before = await self._log.hazards(), self.hazards
                self.hazards = found
                if found and list(found) != list(before):
                    log.error("log_unsafe", code=Code.TOPIC_UNSAFE.name, detail="; ".join(found))
                elif before and not found:
                    log.info("log_safe_again")
