"""Whole replicas whose power is cut: what is known to be lost stops service, and nothing else does."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.simulation.draw import draw, draw_profile
from tests.simulation.kinds import play
from tests.simulation.plan import Plan
from tests.simulation.power import with_power_cut
from tests.simulation.workers import all_serving


def _synced(plan: Plan) -> Plan:
    return replace(with_power_cut(plan), durability="synced")


@pytest.mark.parametrize("seed", range(1, 16))
def test_a_synced_log_loses_nothing(seed: int) -> None:
    """Goal: after a power cut service goes on by itself, with every answer kept. Method: brokers, replicas or both lose
    power, indexes go back; one replica serves, or all; the log in a topic, or on Postgres."""
    serving_one, serving_all = draw_profile(seed), all_serving(draw(seed))
    for plan in (serving_one, serving_all, replace(serving_one if seed % 2 else serving_all, on_postgres=True)):
        outcome = play(_synced(plan))
        assert outcome.violations == [], plan
