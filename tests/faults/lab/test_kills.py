"""Replicas that are killed, stopped, paused or frozen."""

from __future__ import annotations

import asyncio
from time import monotonic_ns

import pytest

from tests.faults.lab.lab import Lab
from tests.faults.lab.scene import AFTER_S, scene, within
from tests.faults.lab.thread import stalled_main_thread
from tests.faults.recorder import Scenario
from tests.faults.scenarios import (
    FREEZE_CORE,
    FREEZE_GROUP,
    KILL_CORE,
    KILL_GROUP,
    Fault,
    fail_over,
    freeze_beyond_lease,
    wait_for_return,
)

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.asyncio(loop_scope="session"),
]

KILLS = 7
RAPID_KILLS = 10
FREEZES = 3
PAUSES = 3
PAUSE_GOAL_S = 3.0  # the longest pause, and HAProxy's checks until it sends clients there again
STALL_S = 5.0
CRASH_GOAL_S, CRASH_MEDIAN_GOAL_S = 2.0, 1.0
FREEZE_GOAL_S = 4.5  # lease + 1.5 s
# When all have been killed the first must start again: the supervisor's pause of 2 s, up to 2 s for the processes,
# 1.4 s for which it lets others go first that are not there, and then what every fail-over takes.
ALL_KILLED_GOAL_S = 6.0
beyond_its_lease = pytest.mark.not_on("embedded", "longer than its lease of 0.9 s: F3")


@pytest.mark.scenario("F1", "the active is killed", outage_goal_s=CRASH_GOAL_S, median_goal_s=CRASH_MEDIAN_GOAL_S)
@pytest.mark.parametrize("fault", [pytest.param(KILL_GROUP, id="group"), pytest.param(KILL_CORE, id="core")])
async def test_a_peer_takes_over_from_a_killed_active(lab: Lab, scenario: Scenario, fault: Fault) -> None:
    """Goal: a crash costs a moment and nothing else. Method: kill -9 of the active, time after time."""
    async with scene(lab, scenario) as now:
        for _ in range(KILLS):
            await now.active_replica()
            take_over = await fail_over(lab, fault)
            assert take_over.successor != take_over.fallen
            scenario.fired(f"{take_over.fallen} killed, {take_over.successor} took over")
            scenario.outage(now.load, take_over.fault_ns, take_over.until_ns)


@pytest.mark.scenario("F2", "the active pauses for less than its lease", outage_goal_s=PAUSE_GOAL_S)
@pytest.mark.parametrize("pause_s", [0.5, *[pytest.param(pause_s, marks=beyond_its_lease) for pause_s in (1.5, 2.0)]])
async def test_a_short_pause_is_no_fail_over(lab: Lab, scenario: Scenario, pause_s: float) -> None:
    """Goal: clients see latency and no replica takes over. Method: SIGSTOP and SIGCONT of core and front ends.

    With a database the longest pause is as long as `answer_max_s`: the statement that was under way when it began is
    overdue when it ends, and its answer has been there for long.
    """
    async with scene(lab, scenario) as now:
        for _ in range(PAUSES):
            active = await now.active_replica()
            epoch_before, fault_ns = now.claims.newest_epoch, monotonic_ns()
            active.freeze_group()
            await asyncio.sleep(pause_s)
            active.thaw()
            await now.served_since(monotonic_ns())
            scenario.fired(f"{active.name} stood still for {pause_s:g} s")
            scenario.outage(now.load, fault_ns, monotonic_ns())
            assert now.claims.newest_epoch == epoch_before
            await wait_for_return(lab)


@pytest.mark.scenario("F3", "the active is frozen beyond its lease", outage_goal_s=FREEZE_GOAL_S)
@pytest.mark.parametrize("fault", [pytest.param(FREEZE_CORE, id="core"), pytest.param(FREEZE_GROUP, id="group")])
async def test_a_zombie_says_nothing_once_it_was_replaced(lab: Lab, scenario: Scenario, fault: Fault) -> None:
    """Goal: a thawed active is passive in its first answer. Method: SIGSTOP beyond the lease, SIGCONT."""
    async with scene(lab, scenario) as now:
        for number in range(FREEZES):
            await now.active_replica()
            take_over, direct = await freeze_beyond_lease(lab, fault, f"{now.load.name}-direct-{number}")
            scenario.add_history(direct.history)
            assert take_over.zombie_claims == 0
            scenario.fired(f"{take_over.fallen} frozen, {take_over.successor} took over, {take_over.fallen} thawed")
            scenario.outage(now.load, take_over.fault_ns, take_over.until_ns)


@pytest.mark.scenario("F20", "the active's event loop stalls", outage_goal_s=FREEZE_GOAL_S)
async def test_a_stalled_event_loop_gives_leadership_up(lab: Lab, scenario: Scenario) -> None:
    """Goal: threads that run on keep no lock alive. Method: stop the core's main thread alone, by ptrace, for 5 s."""
    async with scene(lab, scenario) as now:
        for _ in range(FREEZES):
            active = await now.active_replica()
            fault_ns = monotonic_ns()
            with stalled_main_thread(active.pid):
                await asyncio.sleep(STALL_S)
                successor = await lab.wait_for_active(other_than=active.name)
            scenario.fired(f"main thread of {active.name} stood still for {STALL_S:g} s, {successor.name} took over")
            await now.served_since(monotonic_ns())
            scenario.outage(now.load, fault_ns, monotonic_ns())
            await wait_for_return(lab)


@pytest.mark.scenario("F24", "each new active is killed at once, ten times", outage_goal_s=ALL_KILLED_GOAL_S)
async def test_progress_is_made_between_rapid_kills(lab: Lab, scenario: Scenario) -> None:
    """Goal: some answers between any two kills, none lost. Method: kill the leader once a client was served.

    Three kills come faster than one restart, so now and then there is no replica at all.
    """
    async with scene(lab, scenario) as now:
        await now.active_replica()
        for _ in range(RAPID_KILLS):
            active = await lab.wait_for_active()
            fault_ns = monotonic_ns()
            active.kill_group()

            async def served_by_another(fault_ns: int = fault_ns, fallen: str = active.name) -> bool:
                leader = await lab.active()
                return leader is not None and leader.name != fallen and now.load.successes_ns()[-1] > fault_ns

            await within(60.0, served_by_another, "nobody took over and served")
            scenario.fired(f"{active.name} killed")
            await asyncio.sleep(0.2)
            scenario.outage(now.load, fault_ns, monotonic_ns())
        await asyncio.sleep(AFTER_S)
