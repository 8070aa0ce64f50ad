"""Who leads: the decision. `step(state, event, now_s, settings, random)` -> (state, actions); imports no I/O.

    Passive --granted--> Activating --activated--> Active
       ^                     |  any failure           |  lock lost, no answer in time, stalled, switchover, stop
       |                     v                        v
       +----stepped down-- SteppingDown <-------------+          SteppingDown, anything --> Ended

One transition at a time: while a service activates or steps down, nothing else is started. A lock session has a
number; an answer that carries an earlier one is from an earlier activation and changes nothing.

Two replicas may both think they lead for a moment, when the database kills a session. See settings.py for the timing
that narrows this, and for what makes it harmless.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

from ha.election.states import (
    Action,
    Activate,
    Activated,
    Activating,
    Active,
    After,
    CloseSession,
    ConfirmLock,
    Crashed,
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
    Offer,
    OpenSession,
    Passive,
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
from ha.ending import Cause, Ending
from ha.invariant import InvariantBroken
from ha.lock.interface import NEVER_S
from ha.settings import ElectionSettings

# One match per state, one case per event. Splitting them would hide a missing pair.
# ruff: noqa: PLR0911, PLR0912

Decision: TypeAlias = tuple[State, list[Action]]


def start(now_s: float, settings: ElectionSettings, *, after_failure: bool) -> State:
    """A replica starts passive. After a failure it starts in hold-down, so that others go first, if there are any."""
    hold_s = settings.hold_down_s if after_failure else 0.0
    return Passive(session=0, link=Link.DOWN, next_at_s=now_s, hold_until_s=now_s + hold_s)


def step(state: State, event: Event, now_s: float, settings: ElectionSettings, random: float) -> Decision:
    """Decide what this replica does next about leadership. `now_s`: boot time; `random`: in [0, 1).

    Raises InvariantBroken on a pair of state and event that cannot be.
    """
    match event:
        case Crashed(reason):
            return Ended(state.session), [] if isinstance(state, Ended) else [EndProcess(reason)]
        case Tick() | StepDownWanted() | SwitchoverWanted() | StopWanted():
            pass
        case _ if event.session < state.session:  # from an earlier activation
            return state, []
        case _ if event.session > state.session:
            raise InvariantBroken(f"{event} while {state}")
    match state:
        case Passive():
            return _passive(state, event, now_s, settings, random)
        case Activating() | Active():
            return _leading(state, event, now_s, settings)
        case SteppingDown():
            return _stepping_down(state, event, now_s, settings)
        case Ended():
            return state, [ReportHandover(Handover.NOT_ACTIVE)] if isinstance(event, SwitchoverWanted) else []


def _passive(state: Passive, event: Event, now_s: float, settings: ElectionSettings, random: float) -> Decision:
    match event, state.link:
        case Tick(), Link.DOWN if now_s >= state.next_at_s:
            session = state.session + 1
            return replace(state, session=session, link=Link.OPENING), [OpenSession(session)]
        case Tick(), Link.IDLE if now_s >= state.next_at_s:
            asks = may_ask(state, event, now_s, settings)
            question = TryLock(state.session) if asks else Look(state.session)
            return replace(state, link=Link.ASKING), [question]
        case Tick(), _:
            return state, []
        case SessionOpened(), Link.OPENING:
            return replace(state, link=Link.IDLE, next_at_s=now_s, failures=0), []
        case SessionFailed(_, reason, False), Link.OPENING:
            return Ended(state.session), [CloseSession(state.session), EndProcess(reason)]
        case SessionFailed(), Link.OPENING:
            return _disconnect(state, now_s, settings, random)
        case ReleaseNoted(), Link.IDLE | Link.ASKING:
            return _release_noted(state, event, now_s, settings), []
        case LockSeen(), Link.ASKING:
            return _seen(state, event, now_s, settings, random)
        case LockGranted(reserved=True), Link.ASKING:  # it is another's turn: let go before anything was done with it
            left = replace(_reserved(state, now_s, settings), link=Link.DOWN, next_at_s=now_s, free_since_s=None)
            return left, [CloseSession(state.session)]
        case LockGranted(), Link.ASKING:
            return _granted(state, event, now_s, settings), [Activate(state.session)]
        case SessionLost(), Link.IDLE | Link.ASKING:
            return _disconnect(state, now_s, settings, random)
        case (
            SessionLost() | LockSeen() | LockGranted() | LockConfirmed() | ReleaseNoted(),
            Link.DOWN,
        ):  # it is closed, whatever it said
            return state, []
        case StepDownWanted(), _:
            return state, []
        case SwitchoverWanted(), _:
            return state, [] if state.handing_over else [ReportHandover(Handover.NOT_ACTIVE)]
        case StopWanted(), _:
            failed = [ReportHandover(Handover.FAILED)] if state.handing_over else []
            return Ended(state.session), [CloseSession(state.session), *failed]
        case _:
            raise InvariantBroken(f"{event} while {state}")


def may_ask(state: Passive, tick: Tick, now_s: float, settings: ElectionSettings) -> bool:
    """Whether a passive asks: it reaches the log, its clock agrees, its hold-down is over, and its turn has come.
    A hold-down also ends when nobody else takes the lock.

    Its turn comes when the lock has been free for the grace period, plus a delay that grows with the lag of its index.
    A replica that need not wait at all asks without looking first.
    """
    readiness = tick.readiness
    fit = readiness.reaches_log and not readiness.barred and abs(tick.clock_skew_s) <= settings.clock_skew_max_s
    held = now_s < state.hold_until_s and not _unclaimed(state, now_s, settings)
    if not fit or held or now_s < state.reserved_until_s:
        return False
    lag_wait_s = min(readiness.lag_records / settings.catch_up_records_per_s, settings.lag_wait_max_s)
    wait_s = lag_wait_s + (0.0 if state.skip_grace else settings.grace_s)
    return wait_s <= 0 or (state.free_since_s is not None and now_s >= state.free_since_s + wait_s)


def _unclaimed(state: Passive, now_s: float, settings: ElectionSettings) -> bool:
    """Whether nobody else takes the lock: a hold-down lets others go first, and is pointless where there are none.

    A replica that is handing over still waits the whole time for its target.
    """
    free_since_s = state.free_since_s
    return not state.handing_over and free_since_s is not None and now_s >= free_since_s + settings.unclaimed_s


def _seen(state: Passive, seen: LockSeen, now_s: float, settings: ElectionSettings, random: float) -> Decision:
    """Note what a question showed, and when to ask the next one: when the grace period ends, if that is sooner."""
    next_at_s = now_s if state.noted else now_s + _retry_s(settings, random)
    state = replace(state, link=Link.IDLE, next_at_s=next_at_s, noted=False)
    if seen.owner is None and not seen.refused:
        if seen.reserved:
            state = _reserved(state, now_s, settings)
        since_s = now_s if state.free_since_s is None else state.free_since_s
        grace_end_s = since_s + settings.grace_s
        if now_s < grace_end_s < next_at_s:
            next_at_s = grace_end_s
        skip_grace = state.skip_grace or seen.released_on_purpose
        return replace(state, next_at_s=next_at_s, free_since_s=since_s, skip_grace=skip_grace), []
    state = replace(state, free_since_s=None, skip_grace=state.skip_grace and seen.own)
    if state.handing_over and seen.owner is not None and not seen.own:
        # handed over, so this replica may be handed the lock again, or help out if the other fails
        handed = replace(state, handing_over=False, hold_until_s=now_s)
        return handed, [ReportHandover(Handover.TAKEN_OVER, seen.owner)]
    return state, []


def _granted(state: Passive, granted: LockGranted, now_s: float, settings: ElectionSettings) -> Activating:
    """Remember who handed over the lock, to return it if activation fails. If the lock came back from our own
    switchover, remember nobody: it would bounce between the two.
    """
    offer = None
    if granted.given_by is not None and now_s >= state.takes_back_until_s:
        offer = Offer(granted.given_by, now_s + 2 * settings.switchover_wait_s)
    return Activating(
        session=state.session,
        since_s=now_s,
        answered_at_s=granted.asked_at_s,
        confirm_at_s=granted.asked_at_s + settings.heartbeat_s,
        undoing=state.handing_over,
        offer=offer,
        interrupted_at_s=state.interrupted_at_s,
    )


def _release_noted(state: Passive, noted: ReleaseNoted, now_s: float, settings: ElectionSettings) -> Passive:
    """Look again at once; the answer to a question in flight may be out of date.

    A replica that is handing over and hears this never saw its target take the lock. It takes the lock back now.
    """
    if state.handing_over:
        state = replace(state, hold_until_s=now_s)
    state = _reserved(state, now_s, settings) if noted.reserved else replace(state, reserved_until_s=NEVER_S)
    return replace(state, next_at_s=now_s) if state.link is Link.IDLE else replace(state, noted=True)


def _reserved(state: Passive, now_s: float, settings: ElectionSettings) -> Passive:
    """Leave the lock to the replica it was released for. If that one fails, leave it to the one that released it.

    The wait counts from the first of such notes, so two replicas that fail in turn do not keep a third one away.
    """
    if now_s < state.reserved_until_s:
        return state
    return replace(state, reserved_until_s=now_s + 2 * settings.switchover_wait_s)


def _retry_s(settings: ElectionSettings, random: float) -> float:
    return settings.retry_s * (1 + settings.retry_jitter * random)


def _disconnect(state: Passive, now_s: float, settings: ElectionSettings, random: float) -> Decision:
    """Close the session, and open another after a pause that doubles with each failure in a row."""
    pause_s = min(_retry_s(settings, random) * 2.0 ** min(state.failures, 30), settings.reconnect_max_s)
    closed = replace(state, link=Link.DOWN, next_at_s=now_s + pause_s, failures=state.failures + 1, free_since_s=None)
    return closed, [CloseSession(state.session)]


def _leading(state: Activating | Active, event: Event, now_s: float, settings: ElectionSettings) -> Decision:
    match event:
        case Tick():
            return _leading_tick(state, event, now_s, settings)
        case LockConfirmed(_, asked_at_s):
            newest_s = max(state.answered_at_s, asked_at_s)
            return replace(state, answered_at_s=newest_s, confirming=False), []
        case ReleaseNoted():  # of an earlier activation than ours
            return state, []
        case SessionLost(_, reason):
            after = _after_loss(state, now_s, settings)
            return _step_down(state, now_s, settings, Ending(Cause.LOCK_LOST, reason), after, release=False)
        case Activated() if isinstance(state, Activating):
            active = Active(
                state.session, state.answered_at_s, state.confirm_at_s, state.confirming, state.interrupted_at_s
            )
            return active, [ReportHandover(Handover.UNDONE)] if state.undoing else []
        case NotActivated(_, ending) if isinstance(state, Activating):
            return _step_down(state, now_s, settings, ending, After.HOLD_DOWN, release=True)
        case StepDownWanted(ending):
            return _step_down(state, now_s, settings, ending, After.HOLD_DOWN, release=True)
        case SwitchoverWanted(to) if isinstance(state, Active):
            ending = Ending(Cause.SWITCHOVER, "" if to is None else f"switchover to {to}")
            return _step_down(state, now_s, settings, ending, After.HAND_OVER, release=True, to=to)
        case SwitchoverWanted():  # one that is being undone will report; otherwise there is nothing to hand over yet
            return state, [] if _undoing(state) else [ReportHandover(Handover.NOT_ACTIVE)]
        case StopWanted(ending):
            return _step_down(state, now_s, settings, ending, After.STOP, release=True)
        case _:
            raise InvariantBroken(f"{event} while {state}")


def _leading_tick(state: Activating | Active, tick: Tick, now_s: float, settings: ElectionSettings) -> Decision:
    """Step down when no answer came in time, the clock is off or the activation hangs; else keep the lock warm."""
    answered_at_s = max(state.answered_at_s, tick.answered_at_s)
    state = replace(state, answered_at_s=answered_at_s)
    if now_s - answered_at_s >= settings.confirmed_age_max_s:
        ending = Ending(Cause.NO_ANSWER, f"no answer on the lock session for {now_s - answered_at_s:.3f} s")
        return _step_down(state, now_s, settings, ending, _after_loss(state, now_s, settings), release=False)
    if abs(tick.clock_skew_s) > settings.clock_skew_max_s:
        ending = Ending(Cause.CLOCK, f"the clock differs from the database's by {tick.clock_skew_s:+.3f} s")
        return _step_down(state, now_s, settings, ending, After.HOLD_DOWN, release=True)
    if isinstance(state, Activating) and now_s - state.since_s >= settings.activation_max_s:
        ending = Ending(Cause.ACTIVATION_FAILED, f"it took more than {settings.activation_max_s} s")
        return _step_down(state, now_s, settings, ending, After.HOLD_DOWN, release=True)
    if state.confirming or now_s < state.confirm_at_s:
        return state, []
    asking = replace(state, confirming=True, confirm_at_s=now_s + settings.heartbeat_s)
    return asking, [ConfirmLock(state.session)]


def _after_loss(state: Activating | Active, now_s: float, settings: ElectionSettings) -> After:
    """An active whose session was interrupted may take the lock again; an activation that lost it has failed.

    An active that loses the lock again soon has failed, too. Its connection to the database may carry single questions
    but no load, and a peer may do better.
    """
    again = now_s - state.interrupted_at_s < settings.hold_down_s
    return After.RACE if isinstance(state, Active) and not again else After.HOLD_DOWN


def _undoing(state: Activating | Active) -> bool:
    return isinstance(state, Activating) and state.undoing


def _step_down(
    state: Activating | Active,
    now_s: float,
    settings: ElectionSettings,
    ending: Ending,
    after: After,
    *,
    release: bool,
    to: str | None = None,
) -> Decision:
    if isinstance(state, Activating) and state.offer is not None and now_s < state.offer.until_s:
        to = state.offer.by
    failed: list[Action] = [ReportHandover(Handover.FAILED)] if _undoing(state) else []
    stepping = SteppingDown(state.session, now_s + settings.drain_max_s, after)
    return stepping, [StepDown(state.session, ending, release, to), *failed]


def _stepping_down(state: SteppingDown, event: Event, now_s: float, settings: ElectionSettings) -> Decision:
    match event:
        case Tick() if now_s >= state.deadline_s:
            return Ended(state.session), [EndProcess(f"the step-down took more than {settings.drain_max_s} s")]
        case Tick():
            return state, []
        case SteppedDown():
            return _stepped_down(state, now_s, settings)
        case StopWanted():
            failed = [ReportHandover(Handover.FAILED)] if state.after is After.HAND_OVER else []
            return replace(state, after=After.STOP), [*failed]
        case StepDownWanted() if state.after is After.RACE:
            return replace(state, after=After.HOLD_DOWN), []
        case SwitchoverWanted() if state.after is not After.HAND_OVER:
            return state, [ReportHandover(Handover.NOT_ACTIVE)]
        case StepDownWanted() | SwitchoverWanted():
            return state, []
        case (
            LockConfirmed() | SessionLost() | Activated() | NotActivated() | ReleaseNoted()
        ):  # crossed with our decision
            return state, []
        case _:
            raise InvariantBroken(f"{event} while {state}")


def _stepped_down(state: SteppingDown, now_s: float, settings: ElectionSettings) -> Decision:
    passive = Passive(session=state.session, link=Link.DOWN, next_at_s=now_s, hold_until_s=now_s)
    match state.after:
        case After.RACE:
            return replace(passive, skip_grace=True, interrupted_at_s=now_s), []
        case After.HOLD_DOWN:
            return replace(passive, hold_until_s=now_s + settings.hold_down_s), []
        case After.HAND_OVER:
            wait_s = settings.switchover_wait_s
            handing = replace(passive, hold_until_s=now_s + wait_s, takes_back_until_s=now_s + 2 * wait_s)
            return replace(handing, handing_over=True), []
        case After.STOP:
            return Ended(state.session), []
