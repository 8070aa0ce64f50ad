"""Replicas that all fail at once: the hold-down lets others go first, and ends early where there are none."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.few import few_quick
from tests.simulation.draw import draw
from tests.simulation.plan import Fault, FaultKind
from tests.simulation.world import simulate

CUT_AT_S = 4.0
HOLD_DOWN_S = 60.0
SERVED_AGAIN_S = (
    15.0  # restarts, peers' marks, sessions of hosts that are gone, clients that try again: below a hold-down
)


@pytest.mark.parametrize("kind", [FaultKind.CRASH, FaultKind.CRASH_HOST, FaultKind.CRASH_TORN])
@pytest.mark.parametrize("seed", few_quick(range(1, 9), 3))
def test_a_power_cut_costs_no_hold_down(kind: FaultKind, seed: int) -> None:
    """Goal: all clients have their answers, all records are applied and published, soon after all replicas were
    killed. Method: kill all at one moment of a drawn plan, with a hold-down that is too long to wait for."""
    plan = draw(seed)
    everybody = tuple(Fault(kind, CUT_AT_S, target=one.name) for one in plan.replicas)
    outcome = simulate(
        replace(
            plan,
            duration_s=CUT_AT_S + 0.1,
            faults=everybody,
            election={**plan.election, "hold_down_s": HOLD_DOWN_S},
        )
    )
    assert outcome.violations == []
    assert outcome.epochs > 1
    assert outcome.virtual_s < CUT_AT_S + SERVED_AGAIN_S
