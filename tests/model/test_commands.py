"""Commands in the log, explored exhaustively: each rule of rules 2 is needed, and together they are enough."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import pytest

from tests.model.commands import OURS, Rules, Scenario, State, Verdict, read_all, start, successors
from tests.model.commands_variants import (
    AFTER,
    DEPOSED,
    LAGGING_CLOCK,
    RAISED,
    RELEASES,
    RETRIED,
    REUSED,
    SCENARIOS,
    TORN,
    TORN_RAISE,
    UNSAFE,
    Variant,
    break_it,
    break_ours,
)
from tests.model.explore import search


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


def settled_under_rules_2(state: State) -> bool:
    return any(record.rules == 2 and record.settles for record in state.log) and state.serving


def read_again_in_the_background(state: State) -> bool:
    in_force = max((record.rules for record in state.log), default=1)
    return in_force == 2 and state.swaps == 2 and state.serving and len(state.log) > 2


def answered_by_a_lagging_clock(state: State) -> bool:
    return state.active == "B" and state.serving and state.sent == 3 and not state.flight


def accepted_again_while_a_deposed_active_answers(state: State) -> bool:
    accepted = [one.submission.tx for one in read_all(state.log)[1] if one.verdict is Verdict.ACCEPTED]
    return state.deposed is not None and accepted == ["T1", "T2"] and state.sent == 2


def refused_by_the_acceptance_above_the_offset(state: State) -> bool:
    return [one.verdict for one in read_all(state.log)[1]] == [Verdict.ACCEPTED, Verdict.ACCEPTED, Verdict.REUSED]


def served_with_a_table_that_is_ahead(state: State) -> bool:
    return state.serving and any(one.index.complete > one.index.position for one in state.replicas)


def raised_after_a_torn_write(state: State) -> bool:
    in_force = max((record.rules for record in state.log), default=1)
    return in_force == 2 and state.crashes == 1 and state.swaps == 2 and state.serving


@pytest.mark.parametrize(
    ("scenario", "goal"),
    [
        (RETRIED, deduplicated_in_the_log),
        (REUSED, accepted_again_after_its_period),
        (RAISED, settled_under_rules_2),
        (RELEASES, read_again_in_the_background),
        (LAGGING_CLOCK, answered_by_a_lagging_clock),
        (DEPOSED, accepted_again_while_a_deposed_active_answers),
        (AFTER, refused_by_the_acceptance_above_the_offset),
        (TORN, served_with_a_table_that_is_ahead),
        (TORN_RAISE, raised_after_a_torn_write),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_space_is_not_empty(scenario: Scenario, goal: Callable[[State], bool]) -> None:
    """Goal: ours is safe although the interesting things happen. Method: find a state in which each has happened."""
    found = search(
        start(scenario),
        lambda state: successors(state, OURS, scenario),
        lambda state: goal.__name__ if goal(state) else None,
    )
    assert found.what == goal.__name__
