"""What becomes of a watched replica, step by step, on a clock that the test moves."""

from __future__ import annotations

import random

import pytest
from pydantic import ValidationError

from ha.supervision import pause_s
from ha.watch.core import Act, Decision, GaveUp, Seen, Starting, State, Stopping, Up, Waiting, begin, step
from ha.watch.settings import WatchSettings
from replica.notary.exit_codes import EXIT_CONFIGURATION

SETTINGS = WatchSettings(failures_max=3)
RESTARTS = SETTINGS.restarts(EXIT_CONFIGURATION)
DOWN, LIVE = Seen(live=False, answers=False), Seen(live=True, answers=True)
HUNG = Seen(live=False, answers=True)


def ended(code: int) -> Seen:
    return Seen(live=False, answers=False, ended=True, exit_code=code)


def decide(
    state: State, seen: Seen, now_s: float = 100.0, settings: WatchSettings = SETTINGS, may_take_down: bool = True
) -> Decision:
    return step(state, seen, now_s, settings, RESTARTS, may_take_down=may_take_down)


def test_what_is_down_is_started_and_what_runs_is_left_alone() -> None:
    """Goal: a watch that is started again finds its replicas. Method: the first look at each kind."""
    assert decide(begin(100.0), DOWN) == Decision(Starting(100.0, 0), Act.START, "starts")
    assert decide(begin(100.0), LIVE) == Decision(Up(100.0, 0), None, "runs already")
    assert decide(Waiting(100.5), DOWN) == Decision(Waiting(100.5))


def test_a_start_that_does_not_come_to_life_is_stopped() -> None:
    """Goal: no replica hangs in its start for ever. Method: the moment before the bound, and the bound."""
    state = Starting(100.0, 0)
    assert decide(state, HUNG, 159.9) == Decision(state)
    late = decide(state, HUNG, 160.0)
    assert (late.state, late.act) == (Stopping(160.0, 1), Act.STOP)
    assert decide(state, LIVE, 101.0).state == Up(101.0, 0)


@pytest.mark.parametrize("state", [Waiting(100.0), Starting(100.0, 1), Up(90.0, 0), Stopping(99.0, 1)])
def test_a_configuration_error_is_left_to_a_person(state: State) -> None:
    """Goal: no restart that cannot help. Method: exit code 2 in every state; then nothing moves it any more."""
    decision = decide(state, ended(2))
    assert isinstance(decision.state, GaveUp)
    assert decision.act is None
    assert decide(decision.state, LIVE) == Decision(decision.state)


def test_one_lost_check_is_forgiven_and_some_in_a_row_are_not() -> None:
    """Goal: restarts for what hangs, not for a blink. Method: two misses, one success, then three misses."""
    state: State = Up(0.0, 0)
    for seen in (HUNG, HUNG, LIVE, HUNG, HUNG):
        decision = decide(state, seen)
        assert decision.act is None
        state = decision.state
    decision = decide(state, HUNG)
    assert (decision.act, decision.state) == (Act.STOP, Stopping(100.0, 1))


def test_only_one_is_taken_down_at_a_time() -> None:
    """Goal: a machine that stalls does not lose all its replicas. Method: too many misses while one restarts."""
    state = Up(0.0, 0, missed=7)
    assert decide(state, HUNG, may_take_down=False) == Decision(Up(0.0, 0, missed=8))
    assert decide(state, HUNG, may_take_down=True).act is Act.STOP


def test_a_stop_has_a_bound() -> None:
    """Goal: a hung process is killed in the end, once. Method: it answers the port and never ends."""
    state = Stopping(100.0, 1)
    assert decide(state, HUNG, 114.9) == Decision(state)
    killed = decide(state, HUNG, 115.0)
    assert (killed.state, killed.act) == (Stopping(100.0, 1, killed=True), Act.KILL)
    assert decide(killed.state, HUNG, 116.0).act is None
    assert decide(killed.state, DOWN, 116.0).state == Waiting(118.0, 1)


def test_pauses_double_up_to_a_bound_and_a_steady_replica_starts_afresh() -> None:
    """Goal: a crash loop does not eat the machine. Method: failures in a row; then a minute of life."""
    assert [pause_s(failures, RESTARTS) for failures in (1, 2, 3, 6, 99)] == [2.0, 4.0, 8.0, 60.0, 60.0]
    assert decide(Up(90.0, 4), ended(1), 100.0).state == Waiting(132.0, 5)
    assert decide(Up(40.0, 4), LIVE, 99.9).state == Up(40.0, 4)
    assert decide(Up(40.0, 4), LIVE, 100.0).state == Up(40.0, 0)


def test_a_restart_command_takes_the_place_of_stop_and_start() -> None:
    """Goal: the hook of a service manager is used. Method: too many misses with the command set."""
    settings = WatchSettings(failures_max=1, start_command="a {name}", stop_command="b", restart_command="c {name}")
    assert decide(Up(0.0, 0), HUNG, settings=settings).act is Act.RESTART


@pytest.mark.parametrize(
    "changed",
    [
        {"start_command": "x"},
        {"restart_command": "x"},
        {"check_timeout_s": 2.0},
        {"restart_pause_s": 100.0},
    ],
)
def test_settings_that_do_not_fit_are_refused(changed: dict[str, object]) -> None:
    """Goal: a mistake shows at the start. Method: one contradiction at a time."""
    with pytest.raises(ValidationError):
        WatchSettings(**changed)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(50))
def test_whatever_happens_a_replica_that_can_run_is_up_in_the_end(seed: int) -> None:
    """Goal: liveness, and never a start of what runs. Method: random misfortunes, then none."""
    dice = random.Random(seed)
    now_s, state = 0.0, begin(0.0)
    running, hangs, was_started = False, False, False
    for tick in range(400):
        calm = tick > 150
        if running and not calm:
            match dice.randrange(8):
                case 0:
                    running = False
                case 1:
                    hangs = not hangs
        if calm:
            hangs = False
        seen = Seen(running and not hangs, running, was_started and not running, None if running else 1)
        decision = step(state, seen, now_s, SETTINGS, RESTARTS, may_take_down=True)
        state = decision.state
        match decision.act:
            case Act.START:
                assert not running, "started what runs"
                running = was_started = True
            case Act.STOP:
                running = running and hangs  # what hangs does not listen
            case Act.KILL:
                running = False
            case _:
                pass
        now_s += 1.0
    assert isinstance(state, Up)
    assert running
