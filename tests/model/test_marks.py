"""Marks and a log that is cut, explored exhaustively: each rule is needed, and together they are enough."""

from __future__ import annotations

import pytest

from tests.model.explore import Found, search
from tests.model.marks import OURS, Rules, State, Violation, successors, violation

UNSAFE = {
    "lead unbounded": (Rules(bounds_lead=False), Violation.AHEAD),
    "covered by the own file alone": (Rules(covers_at_peer=False), Violation.AHEAD),
    "lengths compared only": (Rules(compares_digest=False), Violation.COVERED),
    "published position not compared": (Rules(compares_published=False), Violation.COVERED),
    "appended before the marks are compared": (Rules(compares_first=False), Violation.COVERED),
}


@pytest.mark.parametrize("name", UNSAFE)
def test_a_design_without_one_rule_spends_twice(name: str) -> None:
    """Goal: each rule is needed. Method: leave it out, and find the shortest schedule that shows it to a client."""
    rules, wanted = UNSAFE[name]
    found = _explore(rules)
    print(f"{name}: {found}")
    assert found.what == wanted


def test_ours_loses_at_most_the_lead_in_the_whole_space() -> None:
    """Goal: what is covered is never spent again, and what is not is at most the lead. Method: all states."""
    found = _explore(OURS)
    print(found)
    assert found.what is None
    assert found.states > 1_000


def _explore(rules: Rules) -> Found:
    return search(State(), lambda state: successors(state, rules), violation)
