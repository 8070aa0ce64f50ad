"""Whole replicas under a lease, beside people who pause fail-over, resume it and prune by words in the log."""

from __future__ import annotations

import pytest

from tests.few import few_quick
from tests.simulation.draw import draw, leased, worded
from tests.simulation.world import simulate

SEEDS = 40


@pytest.mark.parametrize("seed", few_quick(range(SEEDS), 15))
def test_what_people_were_told_holds(seed: int) -> None:
    """Goal: a word counts once or never, and replicas obey. Method: words that are lost, late, repeated and said by two
    at a time, among the faults of the seeds under a lease."""
    outcome = simulate(worded(leased(draw(seed))))
    assert not outcome.violations, outcome.violations
