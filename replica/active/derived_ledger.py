"""Keeps the embedded ledger of a replica: fed by what the follower applies, caught up from the log, made anew.

Every replica keeps its own, active or passive. The log has all that is in it, so whatever happens to the file, the same
thing is done: open it or begin a new one, judge again what it lacks, and go on with what the follower applies.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from ha.clock import Clock
from replica.active.backlog import judged_again
from replica.active.completions import completions_of
from replica.following.apply import Applied
from replica.following.log_reading import known_log
from replica.index.interface import Index
from replica.log.interface import RequestLog
from replica.notary.errors import LogUnavailable, StoreUnavailable
from replica.notary.granters import opens_nothing
from replica.notary.position import BEGIN, begin, offset_of
from replica.notary.records import BarrierRecord
from replica.notary.salvage import NO_SALVAGES, Salvages
from replica.settings import CoreSettings
from replica.store.interface import Pruned, Published
from replica.store.sqlite.file import Begun
from replica.store.sqlite.ledger import EmbeddedLedger, check_pause_s, open_or_make_anew, set_aside
from replica.store.sqlite.tables import FILE, LedgerDamaged

log = structlog.get_logger()

_MEANWHILE_MAX = 50_000  # records applied while the ledger catches up; more are judged again instead


@dataclass(frozen=True, slots=True)
class LedgerState:
    """How far a replica's own ledger is. `written_offset`: log offset that its file covers; -1 for none."""

    written_offset: int
    lag_records: int  # applied records that the file does not cover
    backlog_completions: int  # of those, handed over and waiting for the disk
    size_bytes: int


class DerivedLedger:
    """One replica's ledger, whichever file it is in.

    `run` goes on until it is cancelled. It opens a damaged, deleted or refused file again, and bears with a log that
    cannot be reached. LogRefused and LogTruncated end it, as they end the follower: the ledger has what the log has
    not. They must end the process.
    """

    def __init__(
        self,
        folder: Path,
        request_log: RequestLog,
        index: Index,
        *,
        clock: Clock,
        settings: CoreSettings,
        salvages: Salvages = NO_SALVAGES,
    ) -> None:
        """`index`: the one that the follower applies to; its position is how far the log was handed to `take`."""
        self._folder = folder
        self._log = request_log
        self._index = index
        self._clock = clock
        self._settings = settings
        self._salvages = salvages
        self._current: EmbeddedLedger | None = None  # the one that the follower feeds
        self._lagging: EmbeddedLedger | None = None  # one that catches up
        self._meanwhile: _Meanwhile | None = None  # what the follower applies until then
        self._refusal: StoreUnavailable | None = None  # why there is none, and none may come soon
        self._changed = asyncio.Event()

    @property
    def lag_records(self) -> int:
        """Applied records that the ledger lacks: an activation would wait for them."""
        if self._current is not None:  # it is fed with each run; only the disk lags
            return 0
        fed_offset = BEGIN if self._lagging is None else self._lagging.fed_offset
        return max(0, offset_of(self._index.position()) - fed_offset)

    def state(self) -> LedgerState:
        """For operators. A file that is not open covers nothing."""
        ledger = self._current or self._lagging
        position = None if ledger is None else ledger.progress.position
        written = BEGIN if position is None else position.offset
        size_bytes = 0
        for suffix in ("", "-wal"):
            with suppress(FileNotFoundError):
                size_bytes += (self._folder / f"{FILE}{suffix}").stat().st_size
        lag = max(0, offset_of(self._index.position()) - written)
        return LedgerState(written, lag, 0 if ledger is None else ledger.backlog, size_bytes)

    def take(self, applied: Applied) -> None:
        """Hand over a run, right after it was applied. Raises InvariantBroken when the ledger has another history."""
        if self._current is not None:
            with suppress(LedgerDamaged, StoreUnavailable):  # `run` opens it again and reads this run from the log
                _feed(self._current, applied)
        elif self._meanwhile is not None:
            self._meanwhile.add(applied)

    async def room(self) -> None:
        """Return once the follower may go on: the disk keeps up, or the log is read again later anyway."""
        if self._current is not None:
            with suppress(LedgerDamaged, StoreUnavailable):
                await self._current.room()

    async def reached(self, offset: int) -> Published:
        """The progress once the ledger covers the log up to an offset, also if it is made anew meanwhile.

        Raises StoreUnavailable when the disk refuses, and once `run` has ended.
        """
        while True:
            ledger = await self._going()
            with suppress(LedgerDamaged):
                return await ledger.reached(offset)

    async def prune(self, up_to: int | None, recorded_before_us: int) -> Pruned:
        """See ParticipantStore. A ledger that is made anew has everything again."""
        return await (await self._going()).prune(up_to, recorded_before_us)

    async def run(self) -> None:
        """Keep the ledger. It may be run again."""
        topic_id = self._refusal = None
        try:
            while True:
                try:
                    topic_id = topic_id or await known_log(self._log, self._clock, self._settings.log_retry_s)
                    await self._keep(topic_id)
                except StoreUnavailable as error:
                    log.error("ledger_refused", detail=error.detail)
                    self._refuse(error)
                except LogUnavailable as error:
                    log.warning("ledger_waits", detail=error.detail)
                await self._clock.sleep_s(self._settings.log_retry_s)
        finally:
            self._refuse(StoreUnavailable("the ledger is not kept any more"))

    async def _keep(self, topic_id: str) -> None:
        """Open one file and keep it until it ends. A damaged one is put aside: the next is a new one."""
        file = await asyncio.to_thread(open_or_make_anew, self._folder, topic_id)
        try:
            await self._write(EmbeddedLedger(file, self._check_pause_s), topic_id)
        except LedgerDamaged as error:
            await asyncio.to_thread(set_aside, self._folder / FILE, str(error))

    def _check_pause_s(self, ledger_end: int) -> float | None:
        settings = self._settings
        return check_pause_s(ledger_end, least_per_s=settings.scrub_records_per_s, within_s=settings.scrub_within_s)

    async def _write(self, ledger: EmbeddedLedger, topic_id: str) -> None:
        """Catch up, and write what is taken, until it ends."""
        writing = asyncio.create_task(ledger.run())
        self._lagging = ledger
        try:
            await self._catch_up(ledger, topic_id)
            self._current, self._lagging, self._meanwhile, self._refusal = ledger, None, None, None
            self._changed.set()
            await writing
        finally:
            self._current = self._lagging = self._meanwhile = None
            await ledger.stop()
            await asyncio.gather(writing, return_exceptions=True)

    async def _catch_up(self, ledger: EmbeddedLedger, topic_id: str) -> None:
        """Feed what the ledger lacks, up to what was applied; nothing is applied between the end of this and `take`.

        The log is asked first, even when nothing is lacking: it must have the record that the ledger ends with.
        """
        while True:
            applied_to = self._index.position() or begin(topic_id)
            meanwhile = self._meanwhile = _Meanwhile()
            again = judged_again(
                self._log,
                self._index,
                ledger.fed or begin(topic_id),
                applied_to=applied_to,
                settings=self._settings,
                salvages=self._salvages,
            )
            async with aclosing(again):
                async for applied in again:
                    _feed(ledger, applied)
                    await ledger.room()
                    await self._clock.sleep_s(0)  # let heartbeat, front ends and the follower in between two runs
            await ledger.reached(applied_to.offset)  # what was there before must not be missed in the new file
            if not meanwhile.is_cut:
                for applied in meanwhile.runs:
                    _feed(ledger, applied)
                log.info("ledger_current", log_offset=ledger.fed_offset)
                return

    async def _going(self) -> EmbeddedLedger:
        """The ledger that is written, once there is one. Raises StoreUnavailable when that is not to be expected."""
        while self._current is None or self._current.has_ended:
            if self._refusal is not None:
                raise self._refusal
            self._changed.clear()
            await self._changed.wait()
        return self._current

    def _refuse(self, error: StoreUnavailable) -> None:
        self._refusal = error
        self._changed.set()


class _Meanwhile:
    """Runs that were applied while the ledger caught up, in order; none once there were too many."""

    def __init__(self) -> None:
        self.runs: list[Applied] = []
        self.is_cut = False
        self._records = 0

    def add(self, applied: Applied) -> None:
        self._records += applied.position.offset - applied.reading.after_offset
        self.is_cut = self.is_cut or self._records > _MEANWHILE_MAX
        if self.is_cut:
            self.runs.clear()
        else:
            self.runs.append(applied)


def _feed(ledger: EmbeddedLedger, applied: Applied) -> None:
    ledger.feed(completions_of(applied), begun_of(applied), applied.reading.after_offset, applied.position)


def begun_of(applied: Applied) -> list[Begun]:
    """The activations that a run began, and the releases of a lease, which are of nobody."""
    return [
        Begun(found.record.epoch, _holder(found.record), found.offset, found.stamp_us)
        for found in applied.reading.barriers
    ]


def _holder(barrier: BarrierRecord) -> str:
    return "" if opens_nothing(barrier.granter) else barrier.replica
