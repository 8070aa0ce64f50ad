"""Parts that stand still for a moment: a slow machine is not a dead one."""

from __future__ import annotations

import asyncio
from time import monotonic_ns

import pytest

from tests.faults.lab.lab import Lab
from tests.faults.lab.scene import BEFORE_S, scene
from tests.faults.recorder import Scenario
from tests.faults.stalls import Stall, standing_still, unnoticed
from tests.promises import promised

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="session"),
]

TIMES = 6
LATE_S = 1.0  # after a stall until clients are answered again
HUNG_GOAL_S = 8.0
one_serves = pytest.mark.only_one_serves("where all serve, F52 and F53")
all_serve = pytest.mark.only_all_serve("where one serves, F50 and F51")
in_a_database = pytest.mark.not_on("embedded", "longer than its lease of 0.9 s: F51")
without_database = pytest.mark.only_embedded("with a database F50")


async def many(lab: Lab, scenario: Scenario, stall: Stall) -> None:
    """The same stall several times under load."""
    async with scene(lab, scenario) as now:
        for _ in range(TIMES):
            await now.active_replica()
            fault_ns = monotonic_ns()
            await unnoticed(lab, stall)
            await now.served_since(monotonic_ns())
            scenario.fired(f"{stall.what} stood still for {stall.lasts_s:g} s")
            promised(scenario.outage(now.load, fault_ns, monotonic_ns()) < stall.lasts_s + LATE_S, f"{stall}: late")


@one_serves
@in_a_database
@pytest.mark.scenario("F50", "a stall within the lease of the lock", outage_goal_s=2.5 + LATE_S)
@pytest.mark.parametrize(
    "stall",
    [Stall("core", 1.9), Stall("front ends", 2.5), Stall("HAProxy", 2.5), Stall("replica", 1.9)],
    ids=lambda stall: f"{stall.what}-{stall.lasts_s}",
)
async def test_a_stall_costs_time_and_nothing_else(lab: Lab, scenario: Scenario, stall: Stall) -> None:
    """Goal: no session cut, no mark-down, the same active. Method: SIGSTOP for less than is forgiven, under load."""
    await many(lab, scenario, stall)


@one_serves
@without_database
@pytest.mark.scenario("F51", "a stall within the lease of the log", outage_goal_s=0.5 + LATE_S)
@pytest.mark.parametrize("what", ["core", "front ends", "HAProxy", "replica"])
async def test_a_short_stall_without_a_database(lab: Lab, scenario: Scenario, what: str) -> None:
    """Goal: likewise, with the shorter lease. Method: as above."""
    await many(lab, scenario, Stall(what, 0.5))


@all_serve
@pytest.mark.scenario("F52", "all serve: one stalls", outage_goal_s=1.0 + LATE_S)
@pytest.mark.parametrize("what", ["replica", "core"])
async def test_one_of_several_that_stalls_keeps_its_sessions(lab: Lab, scenario: Scenario, what: str) -> None:
    """Goal: it gets no new connection and keeps those that it has. Method: SIGSTOP of the one that leads."""
    await many(lab, scenario, Stall(what, 1.0, lead_stays=not lab.embedded))


@all_serve
@pytest.mark.scenario("F53", "all serve: all stall together", outage_goal_s=1.9 + LATE_S)
@pytest.mark.parametrize("what", ["all replicas", "everything"])
async def test_all_that_stall_together_lose_nobody(lab: Lab, scenario: Scenario, what: str) -> None:
    """Goal: where nobody else answers, nobody is taken out. Method: SIGSTOP of all replicas, with and without
    HAProxy."""
    await many(lab, scenario, Stall(what, 1.9, lead_stays=not lab.embedded))


@pytest.mark.scenario("F54", "all front ends of the holder hang", outage_goal_s=HUNG_GOAL_S)
async def test_front_ends_that_hang_are_started_anew(lab: Lab, scenario: Scenario) -> None:
    """Goal: the outage ends by itself, without a fail-over. Method: SIGSTOP of the holder's front ends, for good."""
    async with scene(lab, scenario) as now:
        active = await now.active_replica()
        epoch, fault_ns = now.claims.newest_epoch, monotonic_ns()
        hung = Stall("front ends", 0.0).pids(lab, active)
        with standing_still(hung):
            await asyncio.sleep(lab.config.link.front_end_hung_s + BEFORE_S)
            await now.served_since(monotonic_ns())
        scenario.fired(f"front ends {hung} of {active.name} hung")
        scenario.outage(now.load, fault_ns, monotonic_ns())
        promised(not set(hung) & set(Stall("front ends", 0.0).pids(lab, active)), "they were not started anew")
        promised(now.claims.newest_epoch == epoch, "the lead changed")
