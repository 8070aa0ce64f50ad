"""A notary worker: takes submissions of its own clients, logs them under the activation in force, and answers them.

It needs no lock. Whoever holds that writes barriers and completions (activation.py). A worker has a server (server.py)
while nothing speaks against it (fitness.py), and until something does for a while. What it knows of the shared
database comes over a connection of its own, and may be late: service goes on while the database is away.

The reasons, and the attacks that were thought of, are in docs/decisions/0021-workers.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress

import msgspec
import structlog

from ha.ending import Ending
from ha.lock.session import clock_skew_s
from replica.active.admission_budget import AdmissionBudget
from replica.active.catching_up import until_applied
from replica.active.clock_agreement import ClockSeen, booted_us, why_not_stamp
from replica.active.fitness import LOOK_S, PATIENCE_LOOKS, Limits, Step, Unfit, Watch, WorkerFacts
from replica.active.numbers import Numbers, is_paused, needs_range, range_of, usable, writable
from replica.active.parts import Parts
from replica.active.server import Server
from replica.following.apply import Applied
from replica.link.interface import PeerSeen, serving
from replica.log.interface import LogWriter, WatchingLog
from replica.notary.errors import LogUnavailable, NotaryError, SignerUnavailable
from replica.notary.records import BarrierRecord
from replica.store.desk import Desk, DeskSeen

log = structlog.get_logger()

LOOK_SOON_S = 0.05  # while completions of what was applied are not seen to be published
LOOK_LATER_S = 1.0
DESK_MAX_S = 3.0  # for one answer of the database
GATHER_S = 0.005  # under load: at 12,000 records a second, 60 in a run


class Worker:
    """Serves, from `run` until it is cancelled. `take` gets every run that the follower applies."""

    def __init__(
        self,
        parts: Parts,
        open_desk: Callable[[], AbstractAsyncContextManager[Desk]],
        limits: Limits,
        clock_skew_max_s: float,
    ) -> None:
        self.all_serve = True
        self.gather_s = GATHER_S
        self.sharers = 1
        self._parts = parts
        self._open_desk = open_desk
        self._limits = limits
        self._clock_skew_max_s = clock_skew_max_s
        self._numbers: Numbers | None = None
        self._clock_seen: ClockSeen | None = None
        self._seen = DeskSeen(0, None, 0, 0)
        self._unsigned: str | None = None  # why the key could not be used; None: it can, as far as is known
        self._desk_wanted = asyncio.Event()
        self.server: Server | None = None  # while it serves
        self._looked = Watch()

    def note_peers(self, others: Sequence[PeerSeen]) -> None:
        """How the other replicas were seen last: users share their bounds among those that serve."""
        self.sharers = serving(others)

    # ---- what front ends ask ----

    @property
    def unfit(self) -> tuple[Unfit, str] | None:
        """Why it may not serve, as of its newest look; None: it may."""
        return self._looked.unfit

    @property
    def is_serving(self) -> bool:
        """Whether it takes submissions at this moment."""
        return self.server is not None and not self.server.closing

    @property
    def confirming(self) -> Worker:
        """See Serving."""
        return self

    async def confirm_lock(self) -> None:
        """Nothing: what a worker may say depends on no lock."""

    async def read_to_the_end(self) -> None:
        """Return once every record that was in the log at the call is applied, as most servers of the log have it: one
        that is cut off from the others shows less. Raises ActivationFailed and LogUnavailable."""
        end = await self._parts.request_log.agreed_end_offset()
        await until_applied(self._parts, lambda position: position.offset >= end - 1, f"the log's record {end - 1}")

    # ---- what its server asks ----

    @property
    def pruned_to(self) -> int:
        """The ledger offset up to which completions may be gone, as last seen."""
        return self._seen.pruned_to

    @property
    def ledger_end(self) -> int:
        """The newest ledger offset whose completion was seen to be published."""
        return self._seen.ledger_end

    @property
    def published_offset(self) -> int:
        """The log offset up to which completions were seen to be published."""
        return self._seen.published_offset

    def why_not_stamp(self) -> str | None:
        """Why no record may be stamped now; None if one may."""
        clock = self._parts.clock
        return why_not_stamp(self._clock_seen, clock.wall_us(), clock.boottime_s(), self._clock_skew_max_s)

    def numbers(self) -> Numbers | None:
        """The numbers that may be used under the activation in force."""
        position = self._parts.follower.position
        barrier = writable(position)
        if position is None or barrier is None:
            return None
        return self._numbers if usable(self._numbers, barrier, position.seen) else None

    def numbers_now(self) -> tuple[BarrierRecord, Numbers] | None:
        """See Numbering: under the activation in force, whoever began it."""
        barrier, numbers = writable(self._parts.follower.position), self.numbers()
        if barrier is None or numbers is None or self.why_not_stamp() is not None:
            return None
        if self.server is not None and self.server.appender.writer_has_ended:  # until there is another one
            return None
        return barrier, numbers

    def log_failed(self, error: LogUnavailable) -> None:
        """See Numbering: the next look finds it."""
        log.warning("worker_append_failed", detail=error.detail)

    # ---- life ----

    def take(self, applied: Applied) -> None:
        """Answer what a run decided for our clients, and log anew what a barrier in it made void. Raises
        InvariantBroken."""
        if self.server is not None:
            self.server.take(applied)
        if applied.reading.barriers or applied.position.offset > self._seen.published_offset:
            self._desk_wanted.set()
        if applied.reading.barriers:
            if self.server is not None and not self.server.closing:
                self.server.resume()  # what was held during a release
            self._parts.announce()  # the epoch

    def note_unsigned(self, ending: Ending) -> None:
        """The key gave no signature: stop serving at once, until it does again. Another replica's may work."""
        self._unsigned = ending.detail

    async def run(self) -> None:
        """Serve while it may."""
        desk = asyncio.create_task(self._keep_desk(), name="desk")
        desk.add_done_callback(self._desk_ended)
        try:
            await self._watch()
        finally:
            desk.cancel()
            if self.server is not None:
                await self._end(self.server, "the replica stops")
            await asyncio.gather(desk, return_exceptions=True)

    def _desk_ended(self, desk: asyncio.Task[None]) -> None:
        if not desk.cancelled() and isinstance(error := desk.exception(), Exception):
            self._parts.fail(error)

    async def _watch(self) -> None:
        while True:
            facts = self._facts()
            self._looked = self._looked.looked(facts, self._limits)
            if not await self._do(self._looked.step(facts)):
                self._looked = self._looked.rested()
            await self._parts.clock.sleep_s(LOOK_S)

    async def _do(self, step: Step) -> bool:
        """False where it must rest before it may serve again."""
        if step is Step.TRY_KEY:
            return await self._key_signs()
        if step is Step.BEGIN:
            await self._begin()
        elif self.server is not None:
            if step is Step.END or not await self._writes(self.server):
                why = "" if self.unfit is None else self.unfit[1]
                log.warning("worker_stops_serving", detail=why)
                await self._end(self.server, why)
                self._parts.announce()
                return False
            self.server.resume()
        return True

    async def _key_signs(self) -> bool:
        try:
            await self._parts.receipt_signer.check()
        except SignerUnavailable as error:
            self._unsigned = error.detail
        else:
            self._unsigned = None
        return self._unsigned is None

    async def _begin(self) -> None:
        if not await self._key_signs():
            return
        try:
            writer = await self._open_writer()
            await self._parts.mark_check.compare(self._seen.published)
        except LogUnavailable as error:
            log.info("worker_cannot_write", detail=error.detail)
            return
        self.server = Server(self._parts, self, writer, AdmissionBudget(self._parts.settings))
        self.server.begin()
        log.info("worker_serves")
        self._parts.announce()

    async def _open_writer(self) -> LogWriter:
        """One that moves the log nowhere: if each worker drew it to its own server, it would do nothing but move."""
        request_log = self._parts.request_log
        opening = request_log.open_shared_writer if isinstance(request_log, WatchingLog) else request_log.open_writer
        writer = await opening()
        try:
            await self._parts.follower.reread()
        except BaseException:
            await writer.close()
            raise
        return writer

    @property
    def is_connected(self) -> bool:
        """Whether its writer has a connection to the log, if it has one."""
        return self.server is None or self.server.appender.is_connected

    async def _writes(self, server: Server) -> bool:
        """Whether the log takes our records, after another writer was opened in place of one that has ended."""
        if not server.appender.writer_has_ended:
            return True
        try:
            async with asyncio.timeout(PATIENCE_LOOKS * LOOK_S):
                writer = await self._open_writer()
        except (LogUnavailable, TimeoutError) as error:
            unfit = (Unfit.LOG_SILENT, f"the log takes no records: {error or 'no answer in time'}")
            self._looked = msgspec.structs.replace(self._looked, unfit=unfit)
            return False
        log.info("worker_has_a_new_writer", unread=len(server.appender.own.sent))
        await server.renew(writer)
        return True

    async def _end(self, server: Server, why: str) -> None:
        await server.drain(why)
        await server.close()
        self.server = None

    def _facts(self) -> WorkerFacts:
        follower, server = self._parts.follower, self.server
        position = follower.position
        return WorkerFacts(
            reaches_log=follower.reaches_log(),
            marks_hold=self._parts.mark_check.holds,
            lag_records=follower.lag_records,
            is_paused=is_paused(position),
            is_writable=writable(position) is not None,
            may_number=self.numbers() is not None,
            why_not_stamp=self.why_not_stamp(),
            is_serving=server is not None,
            oldest_unread=None if server is None else next(iter(server.appender.own.sent), None),
            has_failed=server is not None and server.appender.has_failed,
            is_signed=self._unsigned is None,
        )

    # ---- the shared database ----

    async def _keep_desk(self) -> None:
        while True:
            try:
                async with self._open_desk() as desk:
                    while True:
                        async with asyncio.timeout(DESK_MAX_S):
                            await self._ask(desk)
                        await self._pause()
            except (NotaryError, TimeoutError) as error:
                log.info("desk_unreachable", detail=str(error) or f"no answer within {DESK_MAX_S:g} s")
            await self._parts.clock.sleep_s(LOOK_LATER_S)

    async def _ask(self, desk: Desk) -> None:
        clock, seen_before = self._parts.clock, self._seen
        before_us, at_s = clock.wall_us(), clock.boottime_s()
        self._seen = await desk.look()
        if self._seen.wall_us is not None:
            skew_s = clock_skew_s(before_us, self._seen.wall_us, clock.wall_us())
            # As before the question: a jump while it was asked looks like a long round trip, which proves nothing.
            self._clock_seen = ClockSeen(skew_s, at_s, booted_us(before_us, at_s))
        position = self._parts.follower.position
        barrier = writable(position)
        if position is not None and barrier is not None and needs_range(self._numbers, barrier, position.seen):
            drawn = await desk.draw()
            self._numbers = Numbers(range_of(drawn.number, drawn.database))
        if self.server is not None:
            self.server.resume()
        if (self._seen.ledger_end, self._seen.pruned_to) != (seen_before.ledger_end, seen_before.pruned_to):
            self._parts.announce()

    async def _pause(self) -> None:
        """Soon again while something is expected of the database, else later."""
        await self._parts.clock.sleep_s(LOOK_SOON_S)
        self._desk_wanted.clear()
        if self._parts.follower.applied_offset > self._seen.published_offset:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_LATER_S):
                await self._desk_wanted.wait()
