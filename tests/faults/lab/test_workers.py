"""Where every replica serves: faults of a worker that does not hold the lock, and of a holder without its database.

What all other scenarios do to "the active" they do there to the holder of the lock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic_ns

import pytest

from tests.faults.lab.lab import DATABASES, Lab
from tests.faults.lab.scene import scene, within
from tests.faults.lab.thread import stalled_main_thread
from tests.faults.lab.workers import (
    OUT_MAX_S,
    asked_directly,
    cut_off_from_log,
    leaves_alone,
    struck,
    worker_without_lock,
)
from tests.faults.load import ClientLoad
from tests.faults.preload import WallClock, restart_with
from tests.faults.recorder import Scenario
from tests.faults.scenarios import (
    FREEZE_CORE,
    FREEZE_GROUP,
    FROZEN_BEYOND_LEASE_S,
    KILL_CORE,
    KILL_GROUP,
    Fault,
    frozen,
    successor_of,
    wait_for_return,
)

pytestmark = [
    pytest.mark.only_all_serve("a replica without the lock serves nobody there"),
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="session"),
]

ROUNDS = 3
KILLED_GOAL_S = 1.0  # as for the clients of the worker itself; those of the others are to notice less
SILENT_GOAL_S = 1.5  # likewise, where HAProxy must find out that a worker is silent
CUT_S = 8.0  # longer than the lease and every time-out
log_and_database_apart = pytest.mark.not_on("postgres", "the log is in the database: F6")
with_a_database = pytest.mark.not_on("embedded", "there is no database")


@pytest.mark.scenario("F1", "a worker without the lock is killed", outage_goal_s=KILLED_GOAL_S)
@pytest.mark.parametrize("fault", [pytest.param(KILL_GROUP, id="group"), pytest.param(KILL_CORE, id="core")])
async def test_a_killed_worker_is_missed_by_nobody(lab: Lab, scenario: Scenario, fault: Fault) -> None:
    """Goal: the others serve on, and the lock stays where it is. Method: kill -9 of one that does not hold it."""
    async with scene(lab, scenario) as now:
        for _ in range(ROUNDS):
            worker = await worker_without_lock(now)
            await leaves_alone(now, worker, struck(worker, fault), "killed")


@pytest.mark.scenario("F3", "a worker without the lock is frozen beyond the lease", outage_goal_s=SILENT_GOAL_S)
@pytest.mark.parametrize("fault", [pytest.param(FREEZE_CORE, id="core"), pytest.param(FREEZE_GROUP, id="group")])
async def test_what_a_thawed_worker_logs_late_is_judged_in_order(lab: Lab, scenario: Scenario, fault: Fault) -> None:
    """Goal: no answer of a thawed worker is wrong, although others spent its clients' states meanwhile. Method: SIGSTOP
    beyond the lease under a client of its own, SIGCONT."""
    async with scene(lab, scenario) as now:
        for _ in range(ROUNDS):
            worker = await worker_without_lock(now)
            lasts_s = lab.config.election.lease_s + FROZEN_BEYOND_LEASE_S
            await leaves_alone(now, worker, frozen(worker, fault), "frozen", lasts_s)


@pytest.mark.scenario("F4", "the machine of a worker without the lock loses its link", outage_goal_s=SILENT_GOAL_S)
async def test_a_worker_without_a_link_is_missed_by_nobody(lab: Lab, scenario: Scenario) -> None:
    """Goal: as for a kill, by silence. Method: no carrier at its machine, no reset."""
    async with scene(lab, scenario) as now:
        for _ in range(ROUNDS):
            worker = await worker_without_lock(now)
            await leaves_alone(now, worker, lab.network.unplugged(worker.name), "lost its link")


@pytest.mark.scenario("F20", "the event loop of a worker without the lock stalls", outage_goal_s=SILENT_GOAL_S)
async def test_a_stalled_worker_is_missed_by_nobody(lab: Lab, scenario: Scenario) -> None:
    """Goal: threads that run on keep no worker in rotation. Method: stop its core's main thread alone, by ptrace."""
    async with scene(lab, scenario) as now:
        worker = await worker_without_lock(now)
        await leaves_alone(now, worker, stalled_main_thread(worker.pid), "stalled")


@pytest.mark.scenario("F6", "a worker without the lock is cut off from the log only", outage_goal_s=SILENT_GOAL_S)
async def test_a_worker_without_the_log_is_missed_by_nobody(lab: Lab, scenario: Scenario) -> None:
    """Goal: it says itself that it cannot serve. Method: drop its packets to all servers of the log, for a while."""
    async with scene(lab, scenario) as now:
        for _ in range(ROUNDS):
            worker = await worker_without_lock(now)
            await leaves_alone(now, worker, cut_off_from_log(lab, worker), "cut off from the log", CUT_S)


@with_a_database
@log_and_database_apart
@pytest.mark.scenario("F7", "a worker without the lock is cut off from the database only", outage_goal_s=KILLED_GOAL_S)
async def test_a_worker_without_the_database_serves_on(lab: Lab, scenario: Scenario) -> None:
    """Goal: no request waits for the database. Method: drop its packets to all databases; its own client is served."""
    async with scene(lab, scenario) as now:
        worker = await worker_without_lock(now)
        epoch_before = now.claims.newest_epoch
        async with asked_directly(now, worker) as direct:
            fault_ns = monotonic_ns()
            with lab.network.cut([worker.name], DATABASES):
                await asyncio.sleep(CUT_S)
                await serves(direct, since_ns=monotonic_ns())
                assert (await lab.balancer.servers())[worker.name].up
                scenario.fired(f"{worker.name}, without the lock, cut off from the database, served on")
            await wait_for_return(lab)
            scenario.outage(direct, fault_ns)
        assert now.claims.newest_epoch == epoch_before


@with_a_database
@log_and_database_apart
@pytest.mark.scenario(
    "F5", "the holder of the lock is cut off from the database only, and serves on", outage_goal_s=KILLED_GOAL_S
)
async def test_a_holder_without_the_database_loses_the_lock_and_no_client(lab: Lab, scenario: Scenario) -> None:
    """Goal: another one takes the lock, and the former holder appends under its barrier. Method: drop its packets to
    all databases; its own client is served before, during and after the change."""
    async with scene(lab, scenario) as now:
        for _ in range(ROUNDS):
            holder = await now.active_replica()
            async with asked_directly(now, holder) as direct:
                fault_ns = monotonic_ns()
                with lab.network.cut([holder.name], DATABASES):
                    successor = await successor_of(lab, holder)
                    await serves(direct, since_ns=monotonic_ns())
                    scenario.fired(f"{holder.name} cut off from the database, {successor.name} took the lock")
                await wait_for_return(lab)
                scenario.outage(direct, fault_ns)


@pytest.mark.scenario("F18", "the wall clock of a worker without the lock jumps", outage_goal_s=SILENT_GOAL_S)
@pytest.mark.parametrize("change", ["+3600", "-3600"])
async def test_a_worker_with_a_wrong_clock_stamps_nothing(
    lab: Lab, scenario: Scenario, change: str, tmp_path: Path
) -> None:
    """Goal: it leaves, and no stamp from another hour is in the log. Method: change its clock; put it right again."""
    clock = WallClock(tmp_path)
    await wait_for_return(lab)
    ill = (await lab.passives())[0]
    await restart_with(lab, ill, clock.env())
    try:
        async with scene(lab, scenario) as now:
            assert await now.active_replica() is not ill
            await leaves_alone(now, ill, wrong(clock, change), f"its clock {change} s", CUT_S)
    finally:
        await restart_with(lab, ill, {})


async def serves(direct: ClientLoad, since_ns: int) -> None:
    """Wait until a client of one replica has had a success since a moment. Raises ServerFailed."""

    async def served() -> bool:
        return direct.successes_ns()[-1] > since_ns

    await within(OUT_MAX_S, served, f"{direct.name} was not served")


@contextmanager
def wrong(clock: WallClock, change: str) -> Iterator[None]:
    """The clock is off while the block runs."""
    clock.set(change)
    try:
        yield
    finally:
        clock.set("+0 x1")
