"""One replica's core: the election's service and the front ends' handler, over a follower and at most an activation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import structlog

from ha.clock import Clock
from ha.election.driver import Role
from ha.election.states import Readiness
from ha.ending import Cause, Ending
from ha.errors import ActivationFailed, HaError
from ha.lock.interface import DatabaseIdentity, LockSession
from replica.active.activation import Activation
from replica.active.counters import Counters
from replica.active.derived_ledger import DerivedLedger, LedgerState
from replica.active.estimate import CompletionEstimate
from replica.active.failures import SubmissionFailures
from replica.active.log_questions import LogQuestions
from replica.active.look_ups import Confirming, LookUps
from replica.active.noting import Noted, NoteUnknown
from replica.active.numbers import is_paused
from replica.active.parts import Parts
from replica.active.places import Places
from replica.active.receipt_signer import ReceiptSigner
from replica.active.server import Server
from replica.active.serving import Leadership, MakeServing
from replica.active.signer import Signer
from replica.following.apply import Applied
from replica.following.follower import Follower
from replica.following.mark_check import MarkCheck
from replica.following.salvaged import SalvagesFound
from replica.index.interface import Index
from replica.link.interface import (
    DEFAULT_OPTIONS,
    LogQuestion,
    Replies,
    Standing,
    SubmitOptions,
    refuse_as_passive,
)
from replica.log.interface import RequestLog
from replica.marks.judging import RECORDS_LOST
from replica.marks.keeper import MarkKeeper
from replica.marks.lead import Lead
from replica.notary.answers import NotNow
from replica.notary.codes import Code
from replica.notary.errors import (
    DatabaseSuperseded,
    InvariantBroken,
    LogUnavailable,
    NotActive,
    NotaryError,
    SignerUnavailable,
)
from replica.notary.parties import PartyNote
from replica.notary.position import ledger_of
from replica.notary.requests import Submission
from replica.notary.salvage import Salvages
from replica.notary.tasks import cancelled
from replica.settings import CoreSettings
from replica.store.interface import ParticipantStore, Pruned
from replica.telemetry.core_spans import Trace

log = structlog.get_logger()
_ANY_TIME_US = 2**63 - 1
_ROOM_TICK_S = 0.01


class CoreSession(LockSession, Protocol):
    """The lock session with what the barrier needs to know of the database."""

    async def database_identity(self) -> DatabaseIdentity:
        """Which database cluster grants the epochs."""


SessionT = TypeVar("SessionT", bound=CoreSession)


class Notes(Protocol):
    """Notes that operators and replicas leave for one another in the database."""

    def is_barred(self) -> bool:
        """Whether this replica must leave the lock alone."""

    def note_end(self, epoch: int, reason: str) -> None:
        """Leave a note on why this replica's activation of that epoch ended just now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What a replica reads, writes and signs with. `require` raises where it may not serve from that log."""

    name: str
    request_log: RequestLog
    require: Callable[[RequestLog], Awaitable[object]]
    index: Index
    salvages: Salvages
    signer: Signer
    clock: Clock
    random_bytes: Callable[[int], bytes]
    settings: CoreSettings
    trace: Trace


@dataclass(frozen=True, slots=True)
class Covering:
    """The marks of this replica and its peers, and how far answers may run ahead of them."""

    marks: MarkKeeper
    lead: Lead


@dataclass(frozen=True, slots=True)
class Ledger(Generic[SessionT]):
    """Where completions go. `derived`: what this replica derives from the log, in either role; None where they are
    published to a database that replicas share."""

    make_store: Callable[[SessionT], ParticipantStore]
    derived: DerivedLedger | None


@dataclass(frozen=True, slots=True)
class Leading:
    """Who leads. `may_lead`: whether this replica may ever ask for the lock. `in_term`: whether this site may serve, at
    this moment, where another one may take over."""

    election: Leadership
    notes: Notes
    may_lead: bool
    in_term: Callable[[], bool]


class Participant(Generic[SessionT]):
    """Connects election, follower and front ends. Decides nothing about the log: the rules do."""

    def __init__(
        self,
        resources: Resources,
        covering: Covering,
        ledger: Ledger[SessionT],
        leading: Leading,
        make_serving: MakeServing,
    ) -> None:
        """`make_serving`: who takes submissions, the holder of the lock alone or every replica."""
        name, request_log, index, clock = resources.name, resources.request_log, resources.index, resources.clock
        settings, salvages = resources.settings, resources.salvages
        self.name = name
        self.may_lead = leading.may_lead
        self.in_term = leading.in_term
        self.marks = covering.marks
        self._lead = covering.lead
        self._make_store = ledger.make_store
        self._ledger = ledger.derived
        self._leadership = leading.election
        self._notes = leading.notes
        self._clock = clock
        self._settings = settings
        self._receipt_signer = ReceiptSigner(resources.signer, settings.sign_max_s, self._on_unsigned, self.in_term)
        self._places = Places()
        self._estimate = CompletionEstimate(settings.retry_after_s)
        self.counters = Counters()
        self.failures = SubmissionFailures(clock, settings.retry_after_s)
        self.follower = Follower(
            request_log,
            index,
            clock,
            settings,
            self._on_applied,
            trace=resources.trace,
            salvages=salvages,
            room=self._room,
            on_assured=self._on_assured,
            on_opened=self._compare_again,
            require=resources.require,
        )
        self._mark_check = MarkCheck(
            request_log, self.follower, self.marks, salvages, clock=clock, retry_s=settings.log_retry_s
        )
        self.activation: Activation | None = None
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._parts = Parts(
            name=name,
            request_log=request_log,
            index=index,
            follower=self.follower,
            receipt_signer=self._receipt_signer,
            places=self._places,
            clock=clock,
            random_bytes=resources.random_bytes,
            settings=settings,
            estimate=self._estimate,
            failures=self.failures,
            salvages=salvages,
            salvages_found=SalvagesFound(index, salvages),
            mark_check=self._mark_check,
            why_exposed=self.why_exposed,
            trace=resources.trace,
            announce=self._announce,
            step_down=leading.election.step_down,
            fail=self._break,
        )
        self.serving = make_serving(self._parts, lambda: self.activation, leading.election)
        self._log_questions = LogQuestions(request_log, settings.retry_after_s)
        self._look_ups = LookUps(
            index, self._receipt_signer, self._may_answer, self._no_look_up, self._break, places=self._places
        )
        self._following: list[asyncio.Task[None]] = []
        self._working: asyncio.Task[None] | None = None
        self._without_session = False
        self._listeners: list[Callable[[], None]] = []

    def on_standing_changed(self, listener: Callable[[], None]) -> None:
        """Call the listener whenever `standing` has changed, from now on. It must not raise."""
        self._listeners.append(listener)

    def _announce(self) -> None:
        for listener in self._listeners:
            listener()

    # ---- life ----

    def start(self) -> None:
        """Begin to follow the log, unless a passive stays away from it."""
        if self._settings.standby == "following":
            self._follow()
        if self.serving.all_serve:
            self._hurry(True)
            self._working = asyncio.create_task(self.guarded(self.serving.run()), name="serve")

    async def stop_working(self) -> None:
        """Answer what can be answered, and take no more, where all serve. While front ends are there, and the follower
        reads. May be repeated."""
        working, self._working = self._working, None
        if working is not None:
            await cancelled(working)

    async def stop(self) -> None:
        """Stop following; the activation was closed by the election before."""
        await self.stop_working()
        await cancelled(*self._following)
        self._following = []
        await self._receipt_signer.drain()

    def _follow(self) -> None:
        if not self._following:
            self._following = [
                asyncio.create_task(self.guarded(self.follower.run()), name="follow"),
                asyncio.create_task(self.guarded(self._mark_check.run()), name="compare with marks"),
                asyncio.create_task(self.guarded(self.marks.run()), name="keep marks"),
            ]
            if self._ledger is not None:
                self._following.append(asyncio.create_task(self.guarded(self._ledger.run()), name="ledger"))

    async def guarded(self, work: Awaitable[None]) -> None:
        """Await work on the log or the index. Its failure ends the replica: without both it may give no verdict."""
        try:
            await work
        except Exception as error:
            self._break(error)

    def _break(self, error: Exception) -> None:
        if not self.broken.done():
            self.broken.set_exception(error)
        position = self.follower.contradicted or (None if self.marks.contradicted else self.follower.position)
        if isinstance(error, NotaryError) and error.code in RECORDS_LOST and position is not None:
            self.marks.contradict(position, own=True)  # unless an older mark is what the log contradicts
        code = error.code.name if isinstance(error, NotaryError) else Code.INTERNAL.name
        log.critical("replica_broken", code=code, detail=str(error), exc_info=error)

    # ---- the election's service ----

    def _hurry(self, hurry: bool) -> None:
        self.follower.hurry(hurry, self.serving.gather_s)

    async def activate(self, session: SessionT) -> None:
        """Open an activation on the lock session; see `Activation.open` for the order."""
        if self.broken.done():
            raise ActivationFailed("the replica is broken")
        if not self.in_term():  # any more, since it asked for the lock
            raise ActivationFailed("this site may not serve", Cause.SITE)
        self._follow()
        self._hurry(True)
        identity = await session.database_identity()
        self.activation = Activation(
            self._parts,
            self._make_store(session),
            database=identity,
            verify_lock=session.confirm,
            grant=session.grant,
            serves=not self.serving.all_serve,
        )
        try:
            await self._receipt_signer.check()
            await self.activation.open()
        except (LogUnavailable, SignerUnavailable, DatabaseSuperseded) as error:
            cause = Cause.SIGNER if isinstance(error, SignerUnavailable) else Cause.ACTIVATION_FAILED
            raise ActivationFailed(error.detail, cause, error.code.name) from error
        except (NotaryError, InvariantBroken) as error:  # as if the follower had met it: damage sets the index aside
            self._break(error)
            await self.marks.say()  # while the lock is held: whoever gets it next reads that
            raise
        steps_ms = {step: round(1000 * took_s, 1) for step, took_s in self.activation.steps_s.items()}
        log.info("activated", epoch=self.activation.epoch, steps_ms=steps_ms)

    async def step_down(self, ending: Ending) -> None:
        """Close the activation: refuse, drain, purge, answer unknown, close the log's writer."""
        self.counters.note_step_down(ending.cause)
        self._announce()
        if self.activation is not None:
            await self.activation.close(str(ending))
            self.leave_note(ending)
            self.counters.note_activation_ended()
            self.activation = None
        self._hurry(self.serving.all_serve)
        if self._settings.standby == "disconnected":
            await self.stop()
        log.info("stepped_down", cause=ending.cause.value, code=ending.code or None, reason=str(ending))

    def leave_note(self, ending: Ending) -> None:
        """Leave a note on the end of an activation that could not be written over the lock session."""
        if self.activation is not None and self.activation.epoch and not self.activation.end_recorded:
            self._notes.note_end(self.activation.epoch, str(ending))

    def own_ledger(self) -> LedgerState | None:
        """How far the ledger is that this replica derives; None where completions are published to a database."""
        return None if self._ledger is None else self._ledger.state()

    def reaches_log(self) -> bool:
        """Whether the log answers, and what writes to it here has a connection."""
        writes = self.activation is None or self.activation.holder.is_connected
        return writes and self.serving.is_connected and self.follower.reaches_log()

    def readiness(self) -> Readiness:
        """Whether to ask for the lock, and how far the index lags."""
        barred = not (self.may_lead and self.in_term()) or self._notes.is_barred()
        if self._settings.standby == "disconnected" and not self._following:
            return Readiness(True, 0, barred)
        return Readiness(self.follower.reaches_log(), self._lag_records(), barred or not self._mark_check.holds)

    def _lag_records(self) -> int:
        """Records that are to be applied, or that the ledger lacks, before this replica could serve."""
        return self.follower.lag_records + (0 if self._ledger is None else self._ledger.lag_records)

    def role_changed(self, role: Role, reason: str) -> None:
        """Announce it to front ends, and log it."""
        log.info("role_changed", role=role.value, reason=reason, epoch=self.epoch)
        self._announce()

    def session_changed(self, problem: str | None) -> None:
        """Log it, once until there is a session again."""
        if problem is not None and not self._without_session:
            log.warning("lock_session_unavailable", detail=problem)
        self._without_session = problem is not None

    # ---- operators ----

    def note_pause(self, paused: bool) -> None:
        """Operators want service paused, or not. Whoever holds the lock and has another barrier in force ends its
        activation; the next one, whoever opens it, looks again and appends the barrier that is due."""
        activation = self.activation
        if activation is None or not activation.opened or not activation.takes_pauses:
            return
        if activation.pauses != paused:
            self._leadership.step_down(Ending(Cause.PAUSE, "of service" if paused else "of service is over"))

    def note_site(self, error: HaError | None) -> None:
        """The site has its term (None), or has it no more: what serves ends. Answers stopped by themselves before."""
        if error is None:
            log.info("site_in_term")
            return
        log.warning("site_not_in_term", code=error.code, detail=error.detail)
        ending = Ending(Cause.SITE, error.detail, error.code)
        self.serving.note_unsigned(ending)
        self._leadership.step_down(ending)
        self._announce()

    async def prune(self, up_to: int | None, keep_s: float) -> Pruned:
        """See ParticipantStore.prune; what was recorded in the last `keep_s` seconds stays, and at least what
        deduplication may still ask for. Raises NotActive, and HaError when the lock session is lost meanwhile."""
        activation = self._serving()
        if activation is None:
            raise NotActive("only the active replica moves the bound")
        kept_s = max(keep_s, self._settings.deduplication_max_s)
        return await activation.prune(up_to, self._clock.wall_us() - round(kept_s * 1e6))

    async def note(self, notes: Sequence[PartyNote]) -> list[Noted]:
        """Log what officers signed, in this order; see Noting.note. Raises NotActive as well."""
        activation = self._serving()
        if activation is None:
            raise NotActive("only the active replica logs registrations")
        noted = await activation.noting.note(notes)
        if not self.in_term():
            raise NoteUnknown("another site may serve by now, without these notes; look there: notary party list")
        return noted

    async def prune_own(self, pruned_to: int) -> None:
        """Let completions of this replica's own ledger go, as operators said for all. Raises StoreUnavailable, and
        HaError when the lock session is lost meanwhile."""
        serving = self._serving()
        if serving is not None:
            await serving.prune(pruned_to, _ANY_TIME_US)
        elif self._ledger is not None:
            pruned = await self._ledger.prune(pruned_to, _ANY_TIME_US)
            if self.activation is not None:  # it has begun meanwhile, and perhaps read the bound before
                self.activation.take_bound(pruned.pruned_to)

    # ---- the front ends' handler ----

    @property
    def epoch(self) -> int:
        """The newest epoch this replica knows of."""
        position = self.follower.position
        known = 0 if position is None else position.epoch
        return known if self.activation is None else max(known, self.activation.epoch)

    @property
    def estimate_s(self) -> float:
        """Upper estimate, seconds, for a request that arrives now: the estimate sent to clients."""
        return self._estimate.wait_s(self.states_in_flight)

    @property
    def server(self) -> Server | None:
        """What takes submissions here and answers them."""
        return self.serving.server

    @property
    def in_flight(self) -> int:
        """Submissions that were taken here and are not finished."""
        return 0 if self.server is None else self.server.intake.budget.submissions

    @property
    def states_in_flight(self) -> int:
        """The states of those submissions."""
        return 0 if self.server is None else self.server.intake.budget.states

    def standing(self) -> Standing:
        """Whether the core answers requests, as of now."""
        ledger_id = ledger_of(self.follower.position)
        if not self._is_serving():
            return Standing(False, self.epoch, self._settings.retry_after_s, paused=self.is_paused, ledger_id=ledger_id)
        return Standing(
            True,
            self.epoch,
            self._settings.retry_after_s,
            self.serving.ledger_end,
            self.serving.pruned_to,
            self.estimate_s,
            all_serve=self.serving.all_serve,
            ledger_id=ledger_id,
        )

    @property
    def is_paused(self) -> bool:
        """Whether operators have paused service, as the newest barrier that this replica has read says."""
        return is_paused(self.follower.position)

    def submit(
        self, replies: Replies, batch: list[tuple[int, Submission]], options: SubmitOptions = DEFAULT_OPTIONS
    ) -> None:
        """Take submissions from a front end."""
        server = self.server if self._is_serving() else None
        if server is not None:
            server.intake.offer(batch, replies, options)
        else:
            replies.send([(ticket, self._refusal()) for ticket, _ in batch])

    def look_up(self, replies: Replies, batch: list[tuple[int, bytes]]) -> None:
        """Answer whether transactions were notarised, and what consumed states."""
        self._look_ups.ask(replies, batch)

    def ask_log(self, replies: Replies, ticket: int, question: LogQuestion) -> None:
        """Answer what the log's own nodes know, whatever this replica's role."""
        self._log_questions.ask(replies, ticket, question)

    def _refusal(self) -> NotNow:
        return refuse_as_passive(self.standing())

    def _no_look_up(self) -> NotNow:
        exposed = self.why_exposed()
        if exposed is None:
            return self._refusal()
        return NotNow(Code.OVERLOADED.name, exposed, self._settings.retry_after_s)

    def _may_answer(self) -> Confirming | None:
        """What may answer look-ups at this moment."""
        if self.why_exposed() is not None:
            return None
        return self.serving.confirming if self._is_serving() else None

    def _is_serving(self) -> bool:
        """Whether submissions are taken and answered here at this moment."""
        return self.serving.is_serving and self.in_term()

    def _serving(self) -> Activation | None:
        """The activation, if it is open at this moment, and this replica leads."""
        activation = self.activation
        if activation is None or not activation.serving or not self._leadership.is_leading() or not self.in_term():
            return None
        return activation

    def _on_unsigned(self, reason: str, code: Code) -> None:
        self.serving.note_unsigned(Ending(Cause.SIGNER, reason, code.name))

    def why_exposed(self) -> str | None:
        """Why nothing may be answered now: a power cut could take what it rests on without a trace, or has. None: it
        may."""
        if self.marks.contradicted is not None:
            return "the log lost records that were read"
        published = self.serving.published_offset
        if self.activation is not None and self.activation.publisher.position is not None:
            published = max(published, self.activation.publisher.position.offset)
        self._lead.note_covered(self.marks.covered_offset(published))
        return self._lead.why_not(self._clock.boottime_s())

    def count_exposed(self) -> int:
        """Applied records that a power cut could take without a trace."""
        self.why_exposed()
        return self._lead.exposed_records

    async def _compare_again(self) -> None:
        """The log was opened anew, perhaps after it lost records that only others have read. Raises as MarkCheck."""
        self.marks.note_opened()
        if self._mark_check.holds:
            await self._mark_check.compare(None)

    def _on_assured(self) -> None:
        if self.server is not None:
            self.server.resume()

    def _on_applied(self, applied: Applied) -> None:
        self.marks.note_applied(applied.position)
        self._lead.note_applied(applied.position.offset, self._clock.boottime_s())
        if self._ledger is not None:
            self._ledger.take(applied)
        self.counters.note_applied(applied.reading, applied.verdicts)
        self._places.note(applied)  # before the answers
        self.serving.take(applied)
        if self.activation is not None:
            self.activation.take(applied)

    async def _room(self) -> None:
        """Return once the ledger of its own takes more, and, where other replicas log as much as they like, once
        completions that wait for the database are below their bound. An activation that opens publishes nothing yet,
        and needs nothing from the follower before its barrier is in force; nothing is queued before that."""
        if self._ledger is not None:
            await self._ledger.room()
        while self.serving.all_serve and self.activation is not None and self.activation.publisher.is_full:
            await self._clock.sleep_s(_ROOM_TICK_S)
