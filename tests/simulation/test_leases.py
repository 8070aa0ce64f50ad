"""Whole replicas on virtual time whose leadership is a lease over the log."""

from __future__ import annotations

import pytest

from tests.few import few_quick
from tests.simulation.draw import draw, leased
from tests.simulation.world import simulate

SEEDS = 60


@pytest.mark.parametrize("seed", few_quick(range(SEEDS), 20))
def test_nothing_is_lost_or_spent_twice_under_a_lease(seed: int) -> None:
    """Goal: every promise holds without a lock server. Method: the plans of the seeds, with a lease."""
    outcome = simulate(leased(draw(seed)))
    assert not outcome.violations, outcome.violations
