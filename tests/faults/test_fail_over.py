"""The active replica is killed, frozen or stopped under load: no answer is lost, changed or given twice.

Each scenario's goal bounds its outage.
"""

from __future__ import annotations

from time import monotonic_ns

import pytest

from replica.local.cluster import LocalCluster
from tests.faults.recorder import Scenario
from tests.faults.scenarios import (
    FREEZE_CORE,
    FREEZE_GROUP,
    KILL_CORE,
    KILL_GROUP,
    STOP,
    Fault,
    fail_over,
    freeze_beyond_lease,
)
from tests.faults.stalls import Stall, unnoticed
from tests.faults.tools import the_protocol_allows
from tests.faults.under_load import under_load

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]


@pytest.mark.scenario("F1", "the active ends, one broker", outage_goal_s=2.0)
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(KILL_GROUP, id="group"),
        pytest.param(KILL_CORE, id="core", marks=pytest.mark.slow),  # CI's: test_accepted_and_killed.py
        pytest.param(STOP, id="stop", marks=pytest.mark.thorough),
    ],
)
async def test_a_peer_takes_over_from_an_active_that_ends(
    cluster: LocalCluster, scenario: Scenario, fault: Fault
) -> None:
    """Goal: no answer is lost when the active ends. Method: SIGKILL or SIGTERM under load, audit of all answers."""
    async with under_load(cluster, scenario) as load:
        take_over = await fail_over(cluster, fault)
        scenario.fired(f"{take_over.fallen} ended, {take_over.successor} took over")
    assert take_over.successor != take_over.fallen
    the_protocol_allows(cluster)
    scenario.outage(load, take_over.fault_ns, take_over.until_ns)
    assert scenario.summary["answers"]["NOTARISED"] > 100  # a run without load would prove nothing


@pytest.mark.thorough
@pytest.mark.only_one_serves("where all serve, F52 and F53")
@pytest.mark.not_on("embedded", "longer than its lease: F51")
@pytest.mark.scenario("F50", "a stall within the lease of the lock, one broker", outage_goal_s=3.5)
@pytest.mark.parametrize("stall", [Stall("replica", 1.9), Stall("front ends", 2.5)], ids=lambda stall: stall.what)
async def test_a_stall_costs_time_and_nothing_else(cluster: LocalCluster, scenario: Scenario, stall: Stall) -> None:
    """Goal: no session cut, no mark-down, the same active. Method: SIGSTOP for less than is forgiven, under load."""
    async with under_load(cluster, scenario) as load:
        fault_ns = monotonic_ns()
        await unnoticed(cluster, stall)
        scenario.fired(f"{stall.what} stood still for {stall.lasts_s:g} s")
    scenario.outage(load, fault_ns)


@pytest.mark.scenario("F3", "the active is frozen beyond its lease, one broker", outage_goal_s=4.5)
@pytest.mark.parametrize(
    "fault",
    [pytest.param(FREEZE_CORE, id="core", marks=pytest.mark.slow), pytest.param(FREEZE_GROUP, id="group")],
)
async def test_a_frozen_active_says_nothing_once_it_was_replaced(
    cluster: LocalCluster, scenario: Scenario, fault: Fault
) -> None:
    """Goal: a zombie gives no answer after the new barrier. Method: SIGSTOP beyond the lease, SIGCONT, audit."""
    async with under_load(cluster, scenario) as load:
        take_over, direct = await freeze_beyond_lease(cluster, fault, f"{load.name}-direct")
        scenario.add_history(direct.history)
        scenario.fired(f"{take_over.fallen} frozen, {take_over.successor} took over, {take_over.fallen} thawed")
    assert take_over.zombie_claims == 0
    the_protocol_allows(cluster)
    scenario.outage(load, take_over.fault_ns, take_over.until_ns)
    assert scenario.summary["answers"]["NOTARISED"] > 100
