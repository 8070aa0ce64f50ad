"""Faults of all kinds, one after the other as drawn from a seed, under as much load as the time allows."""

from __future__ import annotations

from random import Random
from time import monotonic, monotonic_ns

import pytest

from tests.faults.lab.brokers import down
from tests.faults.lab.lab import BROKERS, DATABASES, REPLICAS, Lab
from tests.faults.lab.scene import Scene, scene
from tests.faults.lab.workers import cut_off_from_log, leaves_alone, struck, worker_without_lock
from tests.faults.recorder import Scenario
from tests.faults.scenarios import FREEZE_CORE, FREEZE_GROUP, KILL_CORE, KILL_GROUP, fail_over, frozen, wait_for_return

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.asyncio(loop_scope="session"),
]

SUCCESSES = 120_000  # that clients have in each run, on a machine that is not busy
DURATION_MIN_S, DURATION_MAX_S = 60.0, 300.0
SEEDS = range(1, 5)
FREEZE_GOAL_S = 4.5  # lease + 1.5 s, for the worst of them
EVERYWHERE = ("kill", "kill core", "freeze", "freeze core", "unplug", "HAProxy")
ON_KAFKA = ("no log", "broker")
ON_LOG_NODES = ("no peers", "log node")
WHERE_ALL_SERVE = ("worker killed", "worker frozen", "worker unplugged", "worker without the log")


@pytest.mark.scenario("F1", "and others in turn, drawn by a seed", outage_goal_s=FREEZE_GOAL_S)
@pytest.mark.parametrize("seed", SEEDS)
async def test_one_fault_follows_the_other(lab: Lab, scenario: Scenario, seed: int) -> None:
    """Goal: what one fault leaves does not make the next one worse. Method: faults for some minutes, then the audit."""
    random, began_s = Random(seed), monotonic()

    def enough(successes: int) -> bool:
        took_s = monotonic() - began_s
        return took_s > DURATION_MAX_S or (took_s > DURATION_MIN_S and successes >= SUCCESSES)

    async with scene(lab, scenario, batches=8, batch=50) as now:
        kinds = kinds_of(lab)
        while not enough(len(now.load.successes_ns())):
            await strike(now, random.choice(kinds), random)


def kinds_of(lab: Lab) -> list[str]:
    """What can be struck there."""
    database = [] if lab.embedded else ["no database"]
    by_log = {"kafka": ON_KAFKA, "raft": ON_LOG_NODES}.get(lab.log_kind, ())
    workers = WHERE_ALL_SERVE if lab.config.serving == "all" else ()
    return [*EVERYWHERE, *database, *by_log, *workers]


async def strike(now: Scene, kind: str, random: Random) -> None:
    """One fault, and what must follow it; returns once all are there again."""
    active = await now.active_replica()
    lab, network = now.lab, now.lab.network
    match kind:
        case "kill" | "kill core":
            take_over = await fail_over(lab, KILL_GROUP if kind == "kill" else KILL_CORE)
            now.scenario.fired(f"{take_over.fallen} killed, {take_over.successor} took over")
            now.scenario.outage(now.load, take_over.fault_ns, take_over.until_ns)
        case "freeze" | "freeze core":
            await now.replaced(frozen(active, FREEZE_GROUP if kind == "freeze" else FREEZE_CORE), active, "frozen")
        case "unplug":
            await now.replaced(network.unplugged(active.name), active, "lost its link")
        case "no database":
            await now.replaced(network.cut([active.name], DATABASES), active, "cut off from the database")
        case "no log":
            await now.replaced(network.cut([active.name], BROKERS), active, "cut off from Kafka")
        case "no peers":
            others = [name for name in REPLICAS if name != active.name]
            await now.replaced(network.cut([active.name], others), active, "cut off from the other log nodes")
        case "log node":
            node, fault_ns = random.choice(list(lab.log_nodes.values())), monotonic_ns()
            node.kill_group()
            await now.served_since(fault_ns + 1_000_000_000)
            now.scenario.fired(f"log node {node.name} killed, the log went on")
            await wait_for_return(lab)
        case "worker killed":
            worker = await worker_without_lock(now)
            await leaves_alone(now, worker, struck(worker, KILL_GROUP), "killed")
        case "worker frozen":
            worker = await worker_without_lock(now)
            await leaves_alone(now, worker, frozen(worker, FREEZE_GROUP), "frozen")
        case "worker unplugged":
            worker = await worker_without_lock(now)
            await leaves_alone(now, worker, network.unplugged(worker.name), "lost its link")
        case "worker without the log":
            worker = await worker_without_lock(now)
            await leaves_alone(now, worker, cut_off_from_log(lab, worker), "cut off from the log")
        case "broker":
            broker, fault_ns = random.choice(lab.kafka.brokers), monotonic_ns()
            async with down(lab, broker):
                await now.served_since(fault_ns + 1_000_000_000)
                now.scenario.fired(f"broker {broker.node_id} killed, the log went on")
        case _:
            await lab.haproxy.reload(lab.haproxy.settings)
            now.scenario.fired("HAProxy reloaded")
            await now.served_since(monotonic_ns())
