"""The protocol, explored exhaustively: each tempting design goes wrong, ours does not, within the same bounds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.model.explore import explore
from tests.model.protocol import State, Violation, violations
from tests.model.reading import Scenario, Verdict, read_all
from tests.model.variants import (
    FENCED_THEN_LOADED,
    FORGETFUL,
    OURS,
    RACE,
    RESTART,
    SCENARIOS,
    UNSAFE,
    Variant,
    break_it,
    break_ours,
)


@pytest.mark.thorough
@pytest.mark.parametrize("variant", UNSAFE, ids=[variant.name for variant in UNSAFE])
def test_a_design_without_one_rule_goes_wrong(variant: Variant) -> None:
    """Goal: each rule is needed. Method: leave it out, and find the shortest schedule that shows it to a client."""
    found = break_it(variant)
    print(f"{variant.name}: {found}")
    assert found.what == variant.violation
    assert len(found.schedule) == variant.steps  # another length: the model has changed, so read the schedule again


@pytest.mark.parametrize("name", SCENARIOS)
def test_ours_is_safe_in_the_whole_space(name: str) -> None:
    """Goal: no schedule within the bounds breaks any property. Method: all of them, to the last state."""
    found = break_ours(SCENARIOS[name])
    print(f"{name}: {found}")
    assert found.what is None, str(found)


def test_every_variant_is_compared_within_its_own_bounds() -> None:
    """Goal: ours is explored wherever a variant fails. Method: compare the lists."""
    assert {variant.scenario for variant in UNSAFE} <= set(SCENARIOS.values())


def test_fencing_before_loading_is_safe_too() -> None:
    """Goal: the model does not condemn everything else. Method: the other safe design known, broker transactions."""

    def double_spend(state: State) -> str | None:
        return next((one for one in violations(state, FENCED_THEN_LOADED) if one is Violation.DOUBLE_SPEND), None)

    found = explore(FENCED_THEN_LOADED, RACE, double_spend)
    print(found)
    assert found.what is None, str(found)


def answered_both_ways(state: State) -> bool:
    return {verdict for _, verdict in state.answers} == {Verdict.OK, Verdict.CONFLICT}


def zombie_landed_behind_the_barrier(state: State) -> bool:
    epochs = [record.epoch for record in state.log]
    return epochs != sorted(epochs) and len(state.answers) == 1


def same_epoch_twice(state: State) -> bool:
    barriers = [record.epoch for record in state.log if record.number == 0]
    return len(set(barriers)) < len(barriers) and bool(state.answers)


def restarted_and_active_again(state: State) -> bool:
    return state.restarts == 1 and len(state.answers) == 2 and read_all(state.log, OURS)[0].epoch == 3


@pytest.mark.parametrize(
    ("scenario", "goal"),
    [
        (RACE, answered_both_ways),
        (RACE, zombie_landed_behind_the_barrier),
        (FORGETFUL, same_epoch_twice),
        (RESTART, restarted_and_active_again),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_space_is_not_empty(scenario: Scenario, goal: Callable[[State], bool]) -> None:
    """Goal: ours is safe although the interesting things happen. Method: find a state in which each has happened."""
    found = explore(OURS, scenario, lambda state: goal.__name__ if goal(state) else None)
    assert found.what == goal.__name__
