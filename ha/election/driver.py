"""Carries out what core.py decides, and reports the results. Decides nothing.

One loop takes one event at a time. Work that may wait runs in a task of its own, which ends in an event. So heartbeats
continue during an activation, and a question that hangs does not stop the ticks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from random import Random
from typing import Generic, Protocol, TypeVar

from ha.clock import Clock
from ha.election.core import start, step
from ha.election.states import (
    Action,
    Activate,
    Activated,
    Activating,
    Active,
    CloseSession,
    ConfirmLock,
    Crashed,
    ElectionStatus,
    Ended,
    EndProcess,
    Event,
    Handover,
    Link,
    LockConfirmed,
    LockGranted,
    LockSeen,
    Look,
    NotActivated,
    OpenSession,
    Passive,
    Readiness,
    ReleaseNoted,
    ReportHandover,
    SessionFailed,
    SessionLost,
    SessionOpened,
    State,
    StepDown,
    StepDownWanted,
    SteppedDown,
    SteppingDown,
    StopWanted,
    SwitchoverWanted,
    Tick,
    TryLock,
)
from ha.ending import STOPPED, Cause, Ending
from ha.errors import ActivationFailed, HaError, TransitionFailed, reason_of
from ha.invariant import InvariantBroken
from ha.lock.interface import NEVER_S, LockOwner, LockSession, ReleaseNote, ServerLease
from ha.settings import ElectionSettings

SessionT = TypeVar("SessionT", bound=LockSession)
SessionT_contra = TypeVar("SessionT_contra", bound=LockSession, contravariant=True)


RELEASE_MAX_S = 0.2  # a courtesy: whoever takes over need not wait for the end of the session


class Role(StrEnum):
    """What a replica is to its operators."""

    PASSIVE = "passive"
    ACTIVATING = "activating"
    ACTIVE = "active"
    STEPPING_DOWN = "stepping_down"
    ENDED = "ended"


class Service(Protocol[SessionT_contra]):
    """The service that becomes active and passive. One transition at a time; the election awaits each."""

    async def activate(self, session: SessionT_contra) -> None:
        """Everything from the epoch to "the API accepts". The election reports active only after this returns.

        Raises ActivationFailed (or another HaError, such as the session's) where another replica or a later try may
        succeed: the lock is given back and this replica holds down. Any other exception ends the process.
        May be cancelled at any await; `step_down` follows, as it does after a failure.
        """

    async def step_down(self, ending: Ending) -> None:
        """Refuse, purge, answer the waiting callers, close the log; from any point that an activation has reached.

        `is_leading` is false before it is called, and the lock is let go after it returns. An exception, or more than
        `drain_max_s`, ends the process.
        """

    def readiness(self) -> Readiness:
        """How fit to lead. Cheap: asked with every tick."""

    def role_changed(self, role: Role, reason: str) -> None:
        """For logs and metrics. Cheap, must not raise."""

    def session_changed(self, problem: str | None) -> None:
        """A passive has a lock session (None), or `problem` says why not: it cannot take over. Must not raise."""


@dataclass(frozen=True, slots=True)
class SwitchoverReport:
    """How a switchover ended. `took_over_by`: the replica that has the lock now, when the outcome is TAKEN_OVER."""

    outcome: Handover
    took_over_by: str | None
    took_s: float


class Election(Generic[SessionT]):
    """Runs one replica's part in the election, from start to stop. Belongs to one event loop."""

    def __init__(
        self,
        lock_factory: Callable[[], SessionT],
        *,
        clock: Clock,
        settings: ElectionSettings,
        random: Random,
        after_failure: bool = False,
    ) -> None:
        """`lock_factory` makes a session that is not open yet. `after_failure`: start in hold-down."""
        self._lock_factory = lock_factory
        self._service: Service[SessionT]  # from `run` on: it asks the election, so it is built after it
        self._clock = clock
        self._settings = settings
        self._random = random
        self._state: State = start(clock.boottime_s(), settings, after_failure=after_failure)
        self._session: SessionT | None = None
        self._owner: LockOwner | None = None
        self._inbox: asyncio.Queue[Event] = asyncio.Queue()  # bounded: one event per task, one wish of a kind
        self._wished: set[type[Event]] = set()
        self._next_tick_s = clock.boottime_s()
        self._tasks: set[asyncio.Task[None]] = set()
        self._activation: asyncio.Task[None] | None = None
        self._handover: asyncio.Future[ReportHandover] | None = None
        self._failure: Exception | None = None

    # What others may ask and wish

    @property
    def role(self) -> Role:
        """The role as decided; for "may I serve" ask `is_leading`."""
        return _role(self._state)

    @property
    def leads_until_s(self) -> float:
        """Boot time until which this replica may say that it leads if it hears nothing more; NEVER_S if it may not."""
        if not isinstance(self._state, Active) or self._session is None or self._session.closed:
            return NEVER_S
        return self._session.answered_at_s + self._settings.confirmed_age_max_s

    def is_leading(self) -> bool:
        """Whether this replica leads. Ask immediately before each answer that depends on it: a process that was
        suspended must not answer as the active one when it runs again.
        """
        return self._clock.boottime_s() < self.leads_until_s

    def is_candidate(self) -> bool:
        """Whether this passive could take a free lock: its session is open and its clock agrees with the database's."""
        session = self._session
        return (
            isinstance(self._state, Passive)
            and self._state.link in (Link.IDLE, Link.ASKING)
            and session is not None
            and not session.closed
            and abs(session.clock_skew_s) <= self._settings.clock_skew_max_s
        )

    @property
    def owner(self) -> LockOwner | None:
        """Who was last seen holding the lock, this replica not counted; None while it is this one."""
        return None if isinstance(self._state, Activating | Active | SteppingDown) else self._owner

    def _owner_name(self) -> str | None:
        if isinstance(self._state, Activating | Active) and self._session is not None:
            return self._session.name
        return None if self.owner is None else self.owner.name

    @property
    def server_lease(self) -> ServerLease | None:
        """What the server does about a silent session of this replica's; None while it has none."""
        return None if self._session is None or self._session.closed else self._session.server_lease

    def status(self) -> ElectionStatus:
        """For the health page: role, session and ages in seconds. Does no I/O."""
        now_s, session = self._clock.boottime_s(), self._session
        answered_at_s = NEVER_S if session is None else session.answered_at_s
        hold_s = self._state.hold_until_s - now_s if isinstance(self._state, Passive) else 0.0
        return {
            "role": str(self.role),
            "leading": self.is_leading(),
            "lock_session": self._state.session,
            "lock_session_open": session is not None and not session.closed,
            "lock_answer_age_s": None if answered_at_s == NEVER_S else round(now_s - answered_at_s, 3),
            "lock_owner": self._owner_name(),
            "lock_lease": None if self.server_lease is None else asdict(self.server_lease),
            "clock_skew_s": 0.0 if session is None else session.clock_skew_s,
            "hold_down_s": round(max(0.0, hold_s), 3),
        }

    def stop(self, ending: Ending = STOPPED) -> None:
        """Step down in order, release the lock on purpose and end; `run` returns then. May be repeated.

        `ending`: why the activation ends, if a failure elsewhere stops the replica.
        """
        self._wish(StopWanted(ending))

    def step_down(self, ending: Ending) -> None:
        """The service cannot go on leading (log stalled, higher barrier read). Nothing while passive."""
        self._wish(StepDownWanted(ending))

    async def switchover(self, to: str | None = None) -> SwitchoverReport:
        """Hand over, and report who took the lock. Undone when no replica takes it. Bounded by the settings.

        `to`: the replica that shall take it; the others give it time to do so. If a switchover is under way already,
        its outcome is reported, whatever its target was.
        """
        asked_at_s = self._clock.boottime_s()
        if isinstance(self._state, Ended):
            return SwitchoverReport(Handover.NOT_ACTIVE, None, 0.0)
        if self._handover is None:
            self._handover = asyncio.get_running_loop().create_future()
            self._wish(SwitchoverWanted(to))
        limit = self._settings
        wait_max_s = limit.drain_max_s + 2 * limit.switchover_wait_s + limit.activation_max_s
        report = ReportHandover(Handover.FAILED)
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_max_s):
                report = await asyncio.shield(self._handover)
        taker = None if report.owner is None else report.owner.name
        return SwitchoverReport(report.outcome, taker, self._clock.boottime_s() - asked_at_s)

    # The loop

    async def run(self, service: Service[SessionT]) -> None:
        """Take part until `stop`, and make the service lead and follow. The process must end when this raises:
        TransitionFailed, a HaError that no retry can mend, or the exception that broke a task.
        """
        self._service = service
        try:
            while not isinstance(self._state, Ended):
                self._apply(await self._next_event())
        finally:
            await self._abandon()
        if self._failure is not None:
            raise self._failure

    async def _next_event(self) -> Event:
        """The oldest event; else a tick, when one is due. Events are few: each question and transition yields one."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, self._next_tick_s - self._clock.boottime_s())):
                event = await self._inbox.get()
                self._wished.discard(type(event))
                return event
        self._next_tick_s = self._clock.boottime_s() + self._settings.tick_s
        session = self._session
        return Tick(
            readiness=self._service.readiness(),
            answered_at_s=NEVER_S if session is None else session.answered_at_s,
            clock_skew_s=0.0 if session is None else session.clock_skew_s,
        )

    def _apply(self, event: Event) -> None:
        before = self._state
        self._state, actions = step(
            before, event, self._clock.boottime_s(), self._settings, self._random.random()
        )  # from here on `is_leading` says what was decided
        if isinstance(event, LockSeen):
            self._owner = event.owner
        if _role(before) is not self.role:
            self._service.role_changed(self.role, _why(event, actions))
        if isinstance(before, Passive) and before.link is not Link.DOWN:
            self._tell_of_session(event)
        for action in actions:
            self._carry_out(action)

    def _tell_of_session(self, event: Event) -> None:
        match event:
            case SessionOpened():
                self._service.session_changed(None)
            case SessionFailed(_, reason) | SessionLost(_, reason):
                self._service.session_changed(reason)

    def _carry_out(self, action: Action) -> None:
        match action:
            case OpenSession(number):
                self._session = self._lock_factory()
                self._spawn(self._open(number, self._session))
            case TryLock(number):
                self._spawn(self._ask(number, self._in_use(), self._try_lock))
            case Look(number):
                self._spawn(self._ask(number, self._in_use(), self._look))
            case ConfirmLock(number):
                self._spawn(self._ask(number, self._in_use(), self._confirm))
            case CloseSession():
                if self._session is not None:
                    self._spawn(self._session.close())
            case Activate(number):
                self._activation = self._spawn(self._activate(number, self._in_use()))
            case StepDown():
                self._spawn(self._step_down(action, self._in_use()))
            case ReportHandover():
                self._report(action)
            case EndProcess(reason):
                self._failure = self._failure or TransitionFailed(reason)

    # Tasks; each ends in one event

    async def _open(self, number: int, session: SessionT) -> None:
        try:
            await session.open()
        except HaError as error:
            if not error.retry:
                self._failure = error
            self._post(SessionFailed(number, str(error), error.retry))
            return
        self._post(SessionOpened(number))
        hearing = self._spawn(self._hear(number, session))
        why = await session.wait_closed()  # the only report that the session ended, however it ended
        hearing.cancel()
        self._post(SessionLost(number, why))

    async def _hear(self, number: int, session: SessionT) -> None:
        """Pass on what other holders announce, until the session is closed."""
        while True:
            note = await session.wait_release()
            self._post(ReleaseNoted(number, reserved=_for_another(note, session)))
            self._next_tick_s = self._clock.boottime_s()

    async def _ask(self, number: int, session: SessionT, question: Callable[[int, SessionT], Awaitable[Event]]) -> None:
        """Ask once. A session whose question failed is not used again; it reports its own end, see `_open`."""
        try:
            event = await question(number, session)
        except HaError as error:
            await session.close(reason_of(error))
        else:
            self._post(event)

    async def _try_lock(self, number: int, session: SessionT) -> Event:
        answer = await session.try_lock()
        if answer.granted:
            note = answer.released
            given_by = note.by if note is not None and note.to == session.name else None
            return LockGranted(number, answer.asked_at_s, _for_another(note, session), given_by)
        own = answer.owner is not None and answer.owner.name == session.name
        return LockSeen(number, answer.owner, own=own, refused=True)

    async def _look(self, number: int, session: SessionT) -> Event:
        view = await session.look()
        own = view.owner is not None and view.owner.name == session.name
        note, reserved = view.released, _for_another(view.released, session)
        return LockSeen(number, view.owner, own=own, released_on_purpose=note is not None, reserved=reserved)

    async def _confirm(self, number: int, session: SessionT) -> Event:
        return LockConfirmed(number, await session.confirm())

    async def _activate(self, number: int, session: SessionT) -> None:
        try:
            await self._service.activate(session)
        except HaError as error:
            self._post(NotActivated(number, _ending_of(error)))
        else:
            self._post(Activated(number))

    async def _step_down(self, action: StepDown, session: SessionT) -> None:
        """Step down. Any failure here reaches `_spawn` and ends the process: it is unknown what still serves."""
        if self._activation is not None:
            self._activation.cancel()
            await asyncio.wait({self._activation})
            self._activation = None
        await self._service.step_down(action.ending)
        if action.release:
            with suppress(HaError, TimeoutError):  # the session is lost or hangs, and closing it frees the lock too
                async with asyncio.timeout(RELEASE_MAX_S):
                    await session.release(action.to)
        await session.close()  # last, because closing frees the lock
        self._post(SteppedDown(action.session))

    # Small parts

    def _in_use(self) -> SessionT:
        if self._session is None:
            raise InvariantBroken("no lock session was ever opened")
        return self._session

    def _post(self, event: Event) -> None:
        self._inbox.put_nowait(event)

    def _wish(self, event: Event) -> None:
        """Queue a request from outside, unless one of its kind is queued already."""
        if type(event) not in self._wished:
            self._wished.add(type(event))
            self._post(event)

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            failure = TransitionFailed(f"{type(error).__name__}: {error}")
            failure.__cause__ = error
            self._failure = self._failure or failure
            self._post(Crashed(str(failure)))

    def _report(self, report: ReportHandover) -> None:
        if self._handover is not None and not self._handover.done():
            self._handover.set_result(report)
        self._handover = None

    async def _abandon(self) -> None:
        """After the last decision: close the session, stop the tasks (`drain_max_s` at most), answer all callers."""
        if self._session is not None:
            await self._session.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=self._settings.drain_max_s)
        self._report(ReportHandover(Handover.FAILED))


def _for_another(note: ReleaseNote | None, session: LockSession) -> bool:
    return note is not None and note.to not in (None, session.name)


def _ending_of(error: HaError) -> Ending:
    """The ending of an activation that failed; an error that carries its own cause and code keeps them."""
    if isinstance(error, ActivationFailed):
        return error.ending
    return Ending(Cause.ACTIVATION_FAILED, error.detail, error.code)


def _why(event: Event, actions: list[Action]) -> str:
    """Why the role changed, in words."""
    for action in actions:
        match action:
            case StepDown(_, ending):
                return str(ending)
            case EndProcess(reason):
                return reason
    return type(event).__name__


def _role(state: State) -> Role:
    match state:
        case Passive():
            return Role.PASSIVE
        case Activating():
            return Role.ACTIVATING
        case Active():
            return Role.ACTIVE
        case SteppingDown():
            return Role.STEPPING_DOWN
        case Ended():
            return Role.ENDED
