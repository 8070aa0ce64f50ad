"""Faults between clients and the notary, and load by clients: HAProxy restarts, a thousand clients at once."""

from __future__ import annotations

from time import monotonic_ns

import pytest

from tests.faults.lab.lab import Lab
from tests.faults.lab.scene import scene
from tests.faults.recorder import Scenario
from tests.faults.scenarios import KILL_GROUP, fail_over

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="session"),
]

ROUNDS = 3
STORM_CLIENTS = 1_000
CRASH_GOAL_S = 2.0
RESTART_GOAL_S = 1.0


@pytest.mark.scenario("F21", "HAProxy is restarted", outage_goal_s=RESTART_GOAL_S)
async def test_clients_come_back_after_a_restart_of_haproxy(lab: Lab, scenario: Scenario) -> None:
    """Goal: a restart costs one reconnect. Method: SIGKILL of HAProxy, and a start, under load."""
    async with scene(lab, scenario) as now:
        for _ in range(ROUNDS):
            await now.active_replica()
            fault_ns = monotonic_ns()
            await lab.haproxy.process.kill()
            scenario.fired("HAProxy killed, and started again")
            await lab.haproxy.start()
            await now.served_since(monotonic_ns())
            scenario.outage(now.load, fault_ns, monotonic_ns())


@pytest.mark.scenario("F21", "HAProxy is reloaded", outage_goal_s=RESTART_GOAL_S)
async def test_a_reload_of_haproxy_drops_nothing(lab: Lab, scenario: Scenario) -> None:
    """Goal: no client notices. Method: a new worker takes over under load; the old one finishes."""
    async with scene(lab, scenario) as now:
        for _ in range(ROUNDS):
            await now.active_replica()
            fault_ns = monotonic_ns()
            await lab.haproxy.reload(lab.haproxy.settings)
            scenario.fired("a new worker of HAProxy took over")
            await now.served_since(monotonic_ns())
            scenario.outage(now.load, fault_ns, monotonic_ns())


@pytest.mark.scenario("F22", "a thousand clients try again after a fail-over", outage_goal_s=CRASH_GOAL_S)
async def test_a_retry_storm_is_answered(lab: Lab, scenario: Scenario) -> None:
    """Goal: each submission has one answer, however often it is sent. Method: a thousand clients at a kill."""
    async with scene(lab, scenario, singles=STORM_CLIENTS, batches=0, connections_max=STORM_CLIENTS) as now:
        for _ in range(ROUNDS):
            await now.active_replica()
            take_over = await fail_over(lab, KILL_GROUP)
            await now.served_since(take_over.until_ns)
            scenario.fired(f"{take_over.fallen} killed under {STORM_CLIENTS} clients, {take_over.successor} took over")
            scenario.outage(now.load, take_over.fault_ns, monotonic_ns())
