"""Commands in the log, explored exhaustively: each rule is needed, and together they are enough."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import pytest

from tests.model.commands import OURS, Rules, Scenario, State, Verdict, read_all, successors
from tests.model.commands_variants import (
    AFTER,
    DEPOSED,
    LAGGING_CLOCK,
    RETRIED,
    REUSED,
    SCENARIOS,
    UNSAFE,
    Variant,
    break_it,
    break_ours,
)
from tests.model.explore import search


@pytest.mark.thorough
@pytest.mark.parametrize("variant", UNSAFE, ids=[variant.name for variant in UNSAFE])
def test_a_design_without_one_rule_goes_wrong(variant: Variant) -> None:
    """Goal: each rule is needed. Method: leave it out, and find the shortest schedule that shows it to a client."""
    found = break_it(variant)
    print(f"{variant.name}: {found}")
    assert found.what == variant.violation
    assert len(found.schedule) == variant.steps  # another length: the model has changed, so read the schedule again


@pytest.mark.thorough
@pytest.mark.parametrize("name", SCENARIOS)
def test_ours_is_safe_in_the_whole_space(name: str) -> None:
    """Goal: no schedule within the bounds breaks any property. Method: all of them, to the last state."""
    found = break_ours(SCENARIOS[name])
    print(f"{name}: {found}")
    assert found.what is None, str(found)


def test_every_rule_is_left_out_once_and_every_variant_compared_within_its_own_bounds() -> None:
    """Goal: no rule is taken on trust. Method: compare the lists."""
    left_out = {field.name for variant in UNSAFE for field in fields(Rules) if not getattr(variant.rules, field.name)}
    assert left_out == {field.name for field in fields(Rules)}
    assert {variant.scenario for variant in UNSAFE} <= set(SCENARIOS.values())


def verdicts(state: State) -> set[Verdict]:
    return {completion.verdict for completion in read_all(state.log)[1]}


def deduplicated_in_the_log(state: State) -> bool:
    return Verdict.DEDUPLICATED in verdicts(state)


def accepted_again_after_its_period(state: State) -> bool:
    completions = read_all(state.log)[1]
    return [one.verdict for one in completions] == [Verdict.ACCEPTED, Verdict.ACCEPTED, Verdict.REUSED]


def answered_by_a_lagging_clock(state: State) -> bool:
    return state.active == "B" and state.serving and state.sent == 3 and not state.flight


def accepted_again_while_a_deposed_active_answers(state: State) -> bool:
    accepted = [one.submission.tx for one in read_all(state.log)[1] if one.verdict is Verdict.ACCEPTED]
    return state.deposed is not None and accepted == ["T1", "T2"] and state.sent == 2


def refused_by_the_acceptance_above_the_offset(state: State) -> bool:
    return [one.verdict for one in read_all(state.log)[1]] == [Verdict.ACCEPTED, Verdict.ACCEPTED, Verdict.REUSED]


@pytest.mark.parametrize(
    ("scenario", "goal"),
    [
        (RETRIED, deduplicated_in_the_log),
        (REUSED, accepted_again_after_its_period),
        (LAGGING_CLOCK, answered_by_a_lagging_clock),
        (DEPOSED, accepted_again_while_a_deposed_active_answers),
        (AFTER, refused_by_the_acceptance_above_the_offset),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_space_is_not_empty(scenario: Scenario, goal: Callable[[State], bool]) -> None:
    """Goal: ours is safe although the interesting things happen. Method: find a state in which each has happened."""
    found = search(
        State(),
        lambda state: successors(state, OURS, scenario),
        lambda state: goal.__name__ if goal(state) else None,
    )
    assert found.what == goal.__name__
