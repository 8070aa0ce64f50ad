"""The election's core: pure, so every case is a state, an event and a clock."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ha.election.core import start, step
from ha.election.states import (
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
from ha.ending import Cause, Ending
from ha.invariant import InvariantBroken
from ha.lock.interface import NEVER_S, LockOwner
from ha.settings import ElectionSettings

SETTINGS = ElectionSettings(retry_s=0.2)
STALLED = Ending(Cause.LOG_STALLED, "record 7 did not read back")
FAILED = Ending(Cause.ACTIVATION_FAILED, "x")
FIT = Readiness(reaches_log=True, lag_records=0)
PEER = LockOwner(7, "R2")
IDLE = Passive(session=3, link=Link.IDLE, next_at_s=0.0, hold_until_s=0.0)
ASKING = replace(IDLE, link=Link.ASKING)
ACTIVE = Active(session=3, answered_at_s=100.0, confirm_at_s=100.5)
ACTIVATING = Activating(session=3, since_s=100.0, answered_at_s=100.0, confirm_at_s=100.5)


def tick(readiness: Readiness = FIT, answered_at_s: float = NEVER_S, clock_skew_s: float = 0.0) -> Tick:
    return Tick(readiness, answered_at_s, clock_skew_s)


def decide(state: State, event: Event, now_s: float = 100.0, settings: ElectionSettings = SETTINGS) -> Any:
    return step(state, event, now_s, settings, 0.0)


# ------------------------------------------------------------------------------------------------------------ passive


def test_a_start_opens_a_session_and_asks() -> None:
    """Goal: the way from nothing to the lock. Method: feed the answers that a free lock gives."""
    state: State = start(50.0, SETTINGS, after_failure=False)
    state, actions = decide(state, tick(), 50.0)
    assert actions == [OpenSession(1)]
    state, actions = decide(state, SessionOpened(1), 50.1)
    assert actions == []
    state, actions = decide(state, tick(), 50.1)
    assert actions == [TryLock(1)]
    state, actions = decide(state, LockGranted(1, 50.1), 50.2)
    assert state == Activating(session=1, since_s=50.2, answered_at_s=50.1, confirm_at_s=50.1 + SETTINGS.heartbeat_s)
    assert actions == [Activate(1)]
    state, actions = decide(state, Activated(1), 50.3)
    assert (type(state), actions) == (Active, [])


def test_a_start_after_a_failure_holds_down() -> None:
    """Goal: a restarted replica lets others go first. Method: it looks, and does not ask, until hold_down_s."""
    state = start(0.0, SETTINGS, after_failure=True)
    assert isinstance(state, Passive)
    state = replace(state, session=1, link=Link.IDLE)
    assert decide(state, tick(), SETTINGS.hold_down_s - 0.01)[1] == [Look(1)]
    assert decide(state, tick(), SETTINGS.hold_down_s)[1] == [TryLock(1)]


def test_a_hold_down_ends_when_nobody_else_takes_the_lock() -> None:
    """Goal: replicas that all failed do not wait for one another. Method: the lock is seen free, once or all along."""
    held = replace(IDLE, hold_until_s=105.0, free_since_s=100.0)
    free_until_s = 100.0 + SETTINGS.unclaimed_s
    assert decide(held, tick(), free_until_s - 0.01)[1] == [Look(3)]
    assert decide(held, tick(), free_until_s)[1] == [TryLock(3)]
    taken, _ = decide(replace(held, link=Link.ASKING), LockSeen(3, PEER), 100.5)
    assert decide(taken, tick(), free_until_s)[1] == [Look(3)]  # somebody went first: the count begins again
    assert decide(replace(held, reserved_until_s=104.0), tick(), free_until_s)[1] == [Look(3)]
    assert decide(replace(held, handing_over=True), tick(), free_until_s)[1] == [Look(3)]
    assert decide(held, tick(Readiness(False, 0)), free_until_s)[1] == [Look(3)]


def test_whoever_may_take_a_free_lock_does_so_before_a_hold_down_ends() -> None:
    """Goal: the early end hands nothing to a replica that failed while a fit one is about to ask. Method: the longest
    way of a fit one: it has just looked, is far behind, and jitter is against it; against the settings' figure."""
    settings = ElectionSettings(grace_s=0.7)
    far_behind = tick(Readiness(True, 10**9))
    state: State = replace(IDLE, next_at_s=100.0)
    now_s, asked_at_s = 100.0, NEVER_S  # the lock is seen free by the other one at 100.0, and by this one a poll later
    while asked_at_s == NEVER_S:
        now_s += settings.tick_s
        state, actions = step(state, far_behind, now_s, settings, 0.999)
        if actions == [TryLock(3)]:
            asked_at_s = now_s
        elif actions == [Look(3)]:
            state, _ = step(state, LockSeen(3, None), now_s, settings, 0.999)
    assert asked_at_s < 100.0 + settings.unclaimed_s


@pytest.mark.parametrize(
    ("seen", "asks"),
    [
        (tick(), True),
        (tick(Readiness(False, 0)), False),
        (tick(clock_skew_s=SETTINGS.clock_skew_max_s), True),
        (tick(clock_skew_s=SETTINGS.clock_skew_max_s + 0.001), False),
        (tick(clock_skew_s=-SETTINGS.clock_skew_max_s - 0.001), False),
        (tick(Readiness(True, 1)), False),  # behind: looks first
        (tick(Readiness(True, 0, barred=True)), False),  # fail-over is paused
    ],
)
def test_who_asks(seen: Tick, asks: bool) -> None:
    """Goal: a passive asks while it reaches the log and agrees on the time. Method: one reason not to at a time."""
    assert decide(IDLE, seen)[1] == [TryLock(3) if asks else Look(3)]


def test_grace_counts_from_when_the_lock_was_first_seen_free() -> None:
    """Goal: the old active gets its grace, no more. Method: see it free twice, then ask at the very end of grace."""
    settings = ElectionSettings(retry_s=0.2, grace_s=0.3)
    assert decide(IDLE, tick(), 100.0, settings)[1] == [Look(3)]
    state, _ = decide(ASKING, LockSeen(3, None), 100.0, settings)
    assert state == replace(IDLE, free_since_s=100.0, next_at_s=100.2)
    state, _ = decide(replace(state, link=Link.ASKING), LockSeen(3, None), 100.2, settings)
    assert state == replace(IDLE, free_since_s=100.0, next_at_s=100.3)  # not a poll later, but when grace ends
    assert decide(state, tick(), 100.29, settings)[1] == []
    assert decide(state, tick(), 100.3, settings)[1] == [TryLock(3)]
    seen_held, _ = decide(replace(state, link=Link.ASKING), LockSeen(3, PEER), 100.3, settings)
    assert seen_held == replace(IDLE, free_since_s=None, next_at_s=100.5)


def test_a_lock_released_on_purpose_needs_no_grace() -> None:
    """Goal: an orderly hand-over is not slowed by grace. Method: the note, then somebody takes the lock."""
    settings = ElectionSettings(grace_s=2.0)
    state, _ = decide(ASKING, LockSeen(3, None, released_on_purpose=True), 100.0, settings)
    assert decide(state, tick(), 100.3, settings)[1] == [TryLock(3)]
    assert isinstance(state, Passive)
    state, _ = decide(replace(state, link=Link.ASKING), LockSeen(3, PEER, refused=True), 100.3, settings)
    assert isinstance(state, Passive)
    assert not state.skip_grace


@pytest.mark.parametrize("state", [IDLE, ASKING])
def test_a_note_of_a_release_is_followed_at_once(state: Passive) -> None:
    """Goal: a hand-over does not wait for a poll. Method: the note while idle, and while an old answer is coming."""
    state = replace(state, next_at_s=100.2)
    noted, actions = decide(state, ReleaseNoted(3, reserved=False), 100.0)
    assert actions == []
    if state.link is Link.ASKING:  # what is on its way was asked before the release
        noted, _ = decide(noted, LockSeen(3, PEER, refused=True), 100.01)
    assert decide(noted, tick(), 100.02)[1] == [TryLock(3)]


def test_a_target_that_gives_up_at_once_is_followed_at_once() -> None:
    """Goal: an unfit target costs a moment, not switchover_wait_s. Method: its note alone."""
    state = replace(IDLE, handing_over=True, hold_until_s=103.0)
    assert decide(state, tick(), 100.0)[1] == [Look(3)]
    noted, _ = decide(state, ReleaseNoted(3, reserved=False), 100.0)
    assert decide(noted, tick(), 100.0)[1] == [TryLock(3)]
    taken_back, _ = decide(replace(noted, link=Link.ASKING), LockGranted(3, 100.0), 100.1)
    assert decide(taken_back, Activated(3), 100.2)[1] == [ReportHandover(Handover.UNDONE)]


@pytest.mark.parametrize("heard_by", ["note", "look"])
def test_a_lock_released_for_another_replica_is_left_to_it(heard_by: str) -> None:
    """Goal: the target goes first, then the one that released it, then anybody. Method: the bounds of the wait."""
    if heard_by == "note":
        state, _ = decide(IDLE, ReleaseNoted(3, reserved=True), 100.0)
    else:
        seen = LockSeen(3, None, released_on_purpose=True, reserved=True)
        state, _ = decide(ASKING, seen, 100.0)
    wait_s = 2 * SETTINGS.switchover_wait_s
    again, _ = decide(state, ReleaseNoted(3, reserved=True), 101.0)  # the note comes twice; the wait is not longer
    assert decide(again, tick(), 100.0 + wait_s - 0.01)[1] == [Look(3)]
    assert decide(again, tick(), 100.0 + wait_s)[1] == [TryLock(3)]
    for_anybody, _ = decide(state, ReleaseNoted(3, reserved=False), 101.0)
    assert decide(for_anybody, tick(), 101.0)[1] == [TryLock(3)]


def test_a_grant_out_of_turn_is_let_go_at_once() -> None:
    """Goal: `--to` holds for a poll that crossed with the release. Method: nothing is activated, and the wait is on."""
    state, actions = decide(ASKING, LockGranted(3, 99.9, reserved=True), 100.0)
    assert actions == [CloseSession(3)]
    state, actions = decide(state, tick(), 100.1)
    assert actions == [OpenSession(4)]
    state, _ = decide(state, SessionOpened(4), 100.2)
    assert decide(state, tick(), 100.0 + 2 * SETTINGS.switchover_wait_s - 0.01)[1] == [Look(4)]
    assert decide(state, tick(), 100.0 + 2 * SETTINGS.switchover_wait_s)[1] == [TryLock(4)]


FAILS = (
    NotActivated(3, FAILED),
    StepDownWanted(STALLED),
    StopWanted(),
    tick(clock_skew_s=9.0, answered_at_s=100.0),
)


@pytest.mark.parametrize("failure", FAILS, ids=lambda event: type(event).__name__)
def test_a_target_that_fails_gives_the_lock_back_for_a_bounded_time(failure: Event) -> None:
    """Goal: the old active comes before a third replica. Method: each way to fail, within the time and after it."""
    target, _ = decide(ASKING, LockGranted(3, 100.0, given_by="R1"), 100.0)
    end_s = 100.0 + 2 * SETTINGS.switchover_wait_s
    for now_s, back_to in ((100.0, "R1"), (end_s - 0.01, "R1"), (end_s, None)):
        _, [step_down] = decide(replace(target, answered_at_s=now_s), failure, now_s)
        assert (step_down.release, step_down.to) == (True, back_to)
    anybody, _ = decide(ASKING, LockGranted(3, 100.0), 100.0)
    assert decide(anybody, failure)[1][0].to is None


def test_a_lock_that_came_back_is_not_sent_to_and_fro() -> None:
    """Goal: two replicas that cannot activate do not keep a third from it. Method: the old active fails as well."""
    state = replace(handing_over(), link=Link.ASKING)
    back, _ = decide(state, LockGranted(4, 102.0, given_by="R2"), 102.0)
    assert decide(back, NotActivated(4, FAILED), 102.0)[1][0].to is None
    later_s = 101.0 + 2 * SETTINGS.switchover_wait_s
    given, _ = decide(state, LockGranted(4, later_s, given_by="R2"), later_s)  # by another switchover
    assert decide(given, NotActivated(4, FAILED), later_s)[1][0].to == "R2"


@pytest.mark.parametrize(("lag", "wait_s"), [(0, 0.0), (5_000, 0.1), (25_000, 0.5), (10**9, SETTINGS.lag_wait_max_s)])
def test_who_is_behind_waits_the_longer(lag: int, wait_s: float) -> None:
    """Goal: the wait grows with the lag up to its cap. Method: the moments just before and at its end."""
    state = replace(IDLE, free_since_s=100.0)
    behind = tick(Readiness(True, lag))
    if wait_s:
        assert decide(state, behind, 100.0 + wait_s - 0.001)[1] == [Look(3)]
    assert decide(state, behind, 100.0 + wait_s)[1] == [TryLock(3)]


@pytest.mark.parametrize("state", [IDLE, ASKING])
def test_a_passive_that_hears_nothing_ends_its_session(state: Passive) -> None:
    """Goal: a lock that was granted, the answer lost, is freed. Method: SessionLost; then one of another number."""
    lost, actions = decide(state, SessionLost(3, "no answer"))
    assert actions == [CloseSession(3)]
    assert isinstance(lost, Passive)
    assert lost.link is Link.DOWN
    assert decide(lost, LockGranted(3, 99.0)) == (lost, [])  # the answer came after all: the session is closed
    assert decide(lost, tick(), 200.0)[1] == [OpenSession(4)]


def test_a_heartbeat_answered_while_its_session_was_closed_changes_nothing() -> None:
    """Goal: no crash by an answer that crossed with the end. Method: it was in the socket when the session closed."""
    passive, actions = decide(SteppingDown(3, 102.0, After.RACE), SteppedDown(3))
    assert actions == []
    assert decide(passive, LockConfirmed(3, 99.0)) == (passive, [])


def test_failed_sessions_are_retried_ever_slower_up_to_a_bound() -> None:
    """Goal: a database that is down is not stormed. Method: the pauses of a row of failures, then one success."""
    state: State = start(0.0, SETTINGS, after_failure=False)
    now_s, pauses = 0.0, []
    for number in range(1, 8):
        state, actions = decide(state, tick(), now_s)
        assert actions == [OpenSession(number)]
        state, actions = decide(state, SessionFailed(number, "refused", True), now_s)
        assert actions == [CloseSession(number)]
        assert isinstance(state, Passive)
        pauses.append(round(state.next_at_s - now_s, 3))
        now_s = state.next_at_s
    assert pauses == [0.2, 0.4, 0.5, 0.5, 0.5, 0.5, 0.5]
    state, _ = decide(state, tick(), now_s)
    state, _ = decide(state, SessionOpened(8), now_s)
    assert isinstance(state, Passive)
    assert state.failures == 0


def test_what_no_retry_can_mend_ends_the_process() -> None:
    """Goal: a wrong scope is not retried. Method: an event with `retry` False."""
    opening = replace(IDLE, link=Link.OPENING)
    assert decide(opening, SessionFailed(3, "scope", False)) == (Ended(3), [CloseSession(3), EndProcess("scope")])


# ------------------------------------------------------------------------------------------------------------ leading


@pytest.mark.parametrize("state", [ACTIVE, ACTIVATING])
def test_heartbeats_go_on_also_during_an_activation(state: State) -> None:
    """Goal: one question each heartbeat_s, never two at once. Method: ticks before, at and after it is due."""
    assert decide(state, tick(), 100.49)[1] == []
    asking, actions = decide(state, tick(), 100.5)
    assert actions == [ConfirmLock(3)]
    assert decide(asking, tick(), 101.2)[1] == []
    confirmed, _ = decide(asking, LockConfirmed(3, 100.5), 101.3)
    assert decide(confirmed, tick(), 101.3)[1] == [ConfirmLock(3)]


@pytest.mark.parametrize("state", [ACTIVE, ACTIVATING])
def test_no_answer_in_time_is_a_lost_lock(state: Active | Activating) -> None:
    """Goal: silence for lease_s - margin_s stops the replica. Method: on the limit counts as too old."""
    asking = replace(state, confirming=True)
    assert type(decide(asking, tick(), 102.499)[0]) is type(state)
    stepping, actions = decide(asking, tick(), 102.5)
    assert isinstance(stepping, SteppingDown)
    assert [type(action) for action in actions] == [StepDown]
    assert not actions[0].release


def test_any_answered_statement_counts_from_its_sending() -> None:
    """Goal: the store's statements keep the lock as well as heartbeats do. Method: ticks carry the newest sending."""
    asking = replace(ACTIVE, confirming=True)
    state, _ = decide(asking, tick(answered_at_s=102.0), 102.5)
    assert isinstance(state, Active)
    assert isinstance(decide(state, tick(answered_at_s=101.0), 104.4)[0], Active)  # never taken back
    assert isinstance(decide(state, tick(answered_at_s=101.0), 104.5)[0], SteppingDown)


LOSSES: list[tuple[Event, After, bool]] = [
    (SessionLost(3, "x"), After.RACE, False),
    (StepDownWanted(STALLED), After.HOLD_DOWN, True),
    (SwitchoverWanted(), After.HAND_OVER, True),
    (StopWanted(), After.STOP, True),
    (tick(clock_skew_s=5.0), After.HOLD_DOWN, True),
]


@pytest.mark.parametrize(("event", "after", "release"), LOSSES)
def test_each_way_out_of_active(event: Event, after: After, release: bool) -> None:
    """Goal: step down first, the lock last, and then what fits the reason. Method: every way out."""
    stepping, actions = decide(ACTIVE, event, 101.0)
    assert stepping == SteppingDown(3, 101.0 + SETTINGS.drain_max_s, after)
    assert [type(action) for action in actions] == [StepDown]
    assert actions[0].release is release


@pytest.mark.parametrize(
    ("event", "release"),
    [(NotActivated(3, FAILED), True), (SessionLost(3, "x"), False), (StepDownWanted(STALLED), True)],
)
def test_an_activation_that_fails_holds_down(event: Event, release: bool) -> None:
    """Goal: others go first after a failure, a lost lock included. Method: every way to fail."""
    stepping, actions = decide(ACTIVATING, event, 101.0)
    assert stepping == SteppingDown(3, 103.0, After.HOLD_DOWN)
    assert actions[0].release is release
    passive, _ = decide(stepping, SteppedDown(3), 102.0)
    assert passive == Passive(3, Link.DOWN, next_at_s=102.0, hold_until_s=102.0 + SETTINGS.hold_down_s)


def test_an_activation_has_a_bound() -> None:
    """Goal: an activation that hangs does not keep the lock for ever. Method: confirmed, but too long."""
    late_s = 100.0 + SETTINGS.activation_max_s
    stepping, _ = decide(ACTIVATING, tick(answered_at_s=late_s), late_s)
    assert isinstance(stepping, SteppingDown)


# ---------------------------------------------------------------------------------------------------- stepping down


def test_a_step_down_has_a_bound() -> None:
    """Goal: a step-down that cannot finish ends the process. Method: the tick at the deadline."""
    stepping = SteppingDown(3, 102.0, After.RACE)
    assert decide(stepping, tick(), 101.99) == (stepping, [])
    ended, actions = decide(stepping, tick(), 102.0)
    assert ended == Ended(3)
    assert [type(action) for action in actions] == [EndProcess]


@pytest.mark.parametrize("state", [IDLE, ACTIVATING, ACTIVE, SteppingDown(3, 102.0, After.RACE)])
def test_a_crash_ends_the_process(state: State) -> None:
    """Goal: nothing goes on after a transition that failed. Method: from every state; once."""
    assert decide(state, Crashed("x")) == (Ended(3), [EndProcess("x")])
    assert decide(Ended(3), Crashed("y")) == (Ended(3), [])


def test_an_interrupted_active_may_ask_at_once_although_others_wait() -> None:
    """Goal: what grace is for. Method: step down after a lost session, and see the first question."""
    settings = ElectionSettings(grace_s=2.0)
    passive, _ = decide(SteppingDown(3, 102.0, After.RACE), SteppedDown(3), 101.0, settings)
    assert passive == Passive(3, Link.DOWN, 101.0, hold_until_s=101.0, skip_grace=True, interrupted_at_s=101.0)
    assert isinstance(passive, Passive)
    idle = replace(passive, session=4, link=Link.IDLE)
    assert decide(idle, tick(), 101.0, settings)[1] == [TryLock(4)]
    # its own dead session may hold the lock for a moment longer: that is not another taking it
    seen, _ = decide(replace(idle, link=Link.ASKING), LockSeen(4, PEER, own=True, refused=True), 101.0, settings)
    assert isinstance(seen, Passive)
    assert seen.skip_grace
    seen, _ = decide(replace(idle, link=Link.ASKING), LockSeen(4, PEER, refused=True), 101.0, settings)
    assert isinstance(seen, Passive)
    assert not seen.skip_grace


def test_an_active_that_is_interrupted_again_soon_lets_others_first() -> None:
    """Goal: a way to the database that carries heartbeats and no load does not keep leadership for ever. Method: the
    moment of the first interruption goes with the replica through its next activation; a second loss before and after
    `hold_down_s`."""
    passive, _ = decide(SteppingDown(3, 102.0, After.RACE), SteppedDown(3), 101.0)
    assert isinstance(passive, Passive)
    activating, _ = decide(replace(passive, session=4, link=Link.ASKING), LockGranted(4, 101.5), 101.5)
    active, _ = decide(activating, Activated(4), 102.0)
    for now_s, after in (
        (101.0 + SETTINGS.hold_down_s - 0.1, After.HOLD_DOWN),
        (101.0 + SETTINGS.hold_down_s, After.RACE),
    ):
        stepping, _ = decide(active, SessionLost(4, "x"), now_s)
        assert isinstance(stepping, SteppingDown)
        assert stepping.after is after


@pytest.mark.parametrize(
    ("event", "ending"),
    [
        (SessionLost(3, "the server ended it"), Ending(Cause.LOCK_LOST, "the server ended it")),
        (StepDownWanted(STALLED), STALLED),
        (SwitchoverWanted("R2"), Ending(Cause.SWITCHOVER, "switchover to R2")),
        (SwitchoverWanted(), Ending(Cause.SWITCHOVER)),
        (StopWanted(), Ending(Cause.STOP)),
        (
            StopWanted(Ending(Cause.FAILED, "gone", "INDEX_UNREADABLE")),
            Ending(Cause.FAILED, "gone", "INDEX_UNREADABLE"),
        ),
        (
            tick(clock_skew_s=5.0, answered_at_s=101.0),
            Ending(Cause.CLOCK, "the clock differs from the database's by +5.000 s"),
        ),
        (tick(answered_at_s=98.0), Ending(Cause.NO_ANSWER, "no answer on the lock session for 3.000 s")),
    ],
)
def test_each_step_down_says_its_cause(event: Event, ending: Ending) -> None:
    """Goal: metric, history and runbook agree on the cause. Method: every way out of active, as a value."""
    now_s = 103.0 if ending.cause is Cause.NO_ANSWER else 101.0
    _, actions = decide(ACTIVE, event, now_s)
    assert [action.ending for action in actions if isinstance(action, StepDown)] == [ending]


def test_stop_wins_over_whatever_the_step_down_was_for() -> None:
    """Goal: SIGTERM during a step-down ends in an orderly end. Method: stop in between."""
    for after in After:
        stopping, _ = decide(SteppingDown(3, 102.0, after), StopWanted())
        assert decide(stopping, SteppedDown(3)) == (Ended(3), [])
    assert decide(IDLE, StopWanted()) == (Ended(3), [CloseSession(3)])


# ---------------------------------------------------------------------------------------------------- switchover


def handing_over() -> Passive:
    passive, _ = decide(SteppingDown(3, 102.0, After.HAND_OVER), SteppedDown(3), 101.0)
    assert isinstance(passive, Passive)
    return replace(passive, session=4, link=Link.IDLE)


def test_a_switchover_waits_for_a_peer_and_names_it() -> None:
    """Goal: peers have switchover_wait_s to take the lock. Method: no question for it before; then a peer is seen."""
    state = handing_over()
    assert decide(state, tick(), 101.0 + SETTINGS.switchover_wait_s - 0.01)[1] == [Look(4)]
    state, actions = decide(replace(state, link=Link.ASKING), LockSeen(4, PEER), 101.2)
    assert actions == [ReportHandover(Handover.TAKEN_OVER, PEER)]
    assert not state.handing_over
    assert decide(state, tick(), state.next_at_s)[1] == [TryLock(4)]  # it may be handed the lock back at once


def test_a_switchover_that_nobody_accepts_is_taken_back() -> None:
    """Goal: undone by a full activation, and reported as that. Method: the lock stays free."""
    state = handing_over()
    end_s = 101.0 + SETTINGS.switchover_wait_s
    assert decide(state, tick(), end_s)[1] == [TryLock(4)]
    undoing, _ = decide(replace(state, link=Link.ASKING), LockGranted(4, end_s), end_s)
    assert decide(undoing, Activated(4), end_s)[1] == [ReportHandover(Handover.UNDONE)]
    assert ReportHandover(Handover.FAILED) in decide(undoing, NotActivated(4, FAILED), end_s)[1]


@pytest.mark.parametrize("state", [IDLE, ACTIVATING, SteppingDown(3, 102.0, After.RACE), Ended(3)])
def test_who_does_not_lead_has_nothing_to_hand_over(state: State) -> None:
    """Goal: the operator gets the outcome. Method: every other state."""
    assert decide(state, SwitchoverWanted()) == (state, [ReportHandover(Handover.NOT_ACTIVE)])


# ---------------------------------------------------------------------------------------------------- every pair

STATES: list[State] = [
    *(replace(IDLE, link=link) for link in Link),
    ACTIVATING,
    ACTIVE,
    *(SteppingDown(3, 102.0, after) for after in After),
    Ended(3),
]


def events(session: int) -> list[Event]:
    return [
        SessionOpened(session),
        SessionFailed(session, "x", True),
        SessionFailed(session, "x", False),
        LockSeen(session, None),
        LockSeen(session, PEER),
        LockGranted(session, 99.0),
        LockConfirmed(session, 99.0),
        SessionLost(session, "x"),
        Activated(session),
        NotActivated(session, FAILED),
        SteppedDown(session),
    ]


@pytest.mark.parametrize("state", STATES, ids=str)
def test_answers_of_an_earlier_session_change_nothing(state: State) -> None:
    """Goal: an answer from an earlier session is recognised. Method: every state, every event, the session before."""
    for event in events(2):
        assert decide(state, event) == (state, [])


@pytest.mark.parametrize("state", STATES, ids=str)
def test_an_answer_of_a_session_to_come_is_a_bug(state: State) -> None:
    """Goal: nothing is guessed. Method: every state, every event, the next session's number."""
    for event in events(4):
        with pytest.raises(InvariantBroken):
            decide(state, event)


NAMED = {
    Passive: {SessionOpened, SessionFailed, LockSeen, LockGranted, LockConfirmed, SessionLost},
    Activating: {LockConfirmed, SessionLost, Activated, NotActivated},
    Active: {LockConfirmed, SessionLost},
    SteppingDown: {LockConfirmed, SessionLost, Activated, NotActivated, SteppedDown},
    Ended: {type(event) for event in events(3)},
}


def test_every_pair_is_named_or_an_error() -> None:
    """Goal: no pair falls through. Method: all of them; those not listed here must raise."""
    for state, event in product(STATES, events(3)):
        if type(event) not in NAMED[type(state)]:
            with pytest.raises(InvariantBroken):
                decide(state, event)
        elif not isinstance(state, Passive):
            decide(state, event)
    wishes: list[Event] = [tick(), StopWanted(), SwitchoverWanted(), StepDownWanted(STALLED), Crashed("x")]
    for state, wish in product(STATES, wishes):
        decide(state, wish)


# ---------------------------------------------------------------------------------------------------- the timing


@given(
    asked=st.lists(st.tuples(st.floats(0.0, 2.0), st.floats(0.0, 2.5), st.booleans()), min_size=1, max_size=20),
    grain_s=st.floats(0.001, 0.05),
)
def test_the_claim_ends_before_the_server_can_free_the_lock(
    asked: list[tuple[float, float, bool]], grain_s: float
) -> None:
    """Goal: without killed sessions no two claim to lead at once. Method: any pauses, delays and losses of heartbeats.

    Each question is sent after a pause and takes a delay: a part of it until the server has it, and counts its idle
    time from then; the answer comes at the end, or never. What the core still claims then is compared with the lease.
    """
    state: State = Activating(session=1, since_s=0.0, answered_at_s=0.0, confirm_at_s=0.0)
    state, _ = step(state, Activated(1), 0.0, SETTINGS, 0.0)
    now_s, frees_at_s = 0.0, SETTINGS.lease_s
    for pause_s, delay_s, answered in asked:
        sent_s = now_s + pause_s
        arrived_s = sent_s + delay_s / 2
        if arrived_s < frees_at_s:
            frees_at_s = arrived_s + SETTINGS.lease_s
        while isinstance(state, Active) and now_s < sent_s + delay_s:
            state, _ = step(state, tick(), now_s, SETTINGS, 0.0)
            if isinstance(state, Active):
                claimed_until_s = state.answered_at_s + SETTINGS.confirmed_age_max_s
                assert claimed_until_s + SETTINGS.margin_s <= frees_at_s + 1e-9
            now_s += max(grain_s, 0.01)
        if not isinstance(state, Active) or arrived_s >= frees_at_s:
            return
        if answered:
            state, _ = step(state, LockConfirmed(1, sent_s), now_s, SETTINGS, 0.0)
