"""`notary watch` in the lab: one on each replica's machine, in place of the cluster's own keepers."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from time import monotonic_ns

import pytest

from replica.local.replica import ReplicaProcess
from tests.faults.lab.lab import REPLICAS, Lab
from tests.faults.lab.scene import Scene, scene
from tests.faults.recorder import Scenario
from tests.faults.scenarios import successor_of, wait_for_return
from tests.watched import watched

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="session"),
]

# The watch stops a replica after five failed checks of a second, and kills it `stop_max_s` later: 15 s.
FAULT_S = 25.0
OUTAGE_GOAL_S = 4.5  # lease + 1.5 s


@pytest.mark.scenario("F37", "a machine with a watch is cut off, then frozen", outage_goal_s=OUTAGE_GOAL_S)
async def test_the_watch_of_a_machine_restarts_what_hangs_and_not_what_is_cut_off(lab: Lab, scenario: Scenario) -> None:
    """Goal: the watch judges its own machine alone. Method: one watch a machine; the active's link is taken away: its
    replica stays as it is; the active's group is frozen: its watch kills and starts it; a watch and its replica are
    frozen together, as by a hypervisor, and thawed: nothing is restarted that answers again in time."""
    watches = {name: lab.watch(name) for name in REPLICAS}

    def cores() -> dict[str, int]:
        return {name: watch.core(name) for name, watch in watches.items()}

    async with watched(lab, *watches.values()), scene(lab, scenario) as now:
        active, before = await now.active_replica(), cores()
        await _replaced(now, lab.network.unplugged(active.name), active, "cut off")
        assert cores() == before

        active, before = await now.active_replica(), cores()
        fallen = before[active.name]
        await _replaced(now, _frozen(lambda number: os.killpg(fallen, number)), active, "frozen")
        assert await watches[active.name].started_again(active.name, fallen) != fallen
        assert {name for name, pid in cores().items() if pid != before[name]} == {active.name}

        active, before = await now.active_replica(), cores()
        watch, core = watches[active.name], before[active.name]
        machine = _frozen(watch.signal, lambda number: os.killpg(core, number))
        await _replaced(now, machine, active, "frozen with its watch")
        assert cores() == before


async def _replaced(now: Scene, fault: AbstractContextManager[object], active: ReplicaProcess, what: str) -> None:
    """As `Scene.replaced`, by a fault that lasts so long that the watch restarts a replica that hangs."""
    fault_ns = monotonic_ns()
    with fault:
        successor = await successor_of(now.lab, active)
        now.scenario.fired(f"{active.name} {what}, {successor.name} took over")
        await now.served_since(monotonic_ns())
        until_ns = monotonic_ns()
        await asyncio.sleep(FAULT_S)
    await wait_for_return(now.lab)
    now.scenario.outage(now.load, fault_ns, until_ns)


@contextmanager
def _frozen(*senders: Callable[[signal.Signals], None]) -> Iterator[None]:
    """While the block runs, what these send signals to stands still; what was killed meanwhile is gone."""
    for send in senders:
        send(signal.SIGSTOP)
    try:
        yield
    finally:
        for send in senders:
            with suppress(ProcessLookupError):
                send(signal.SIGCONT)
