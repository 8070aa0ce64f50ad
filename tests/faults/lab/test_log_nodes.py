"""Log nodes are lost, frozen or cut off from one another, each way and one way, or have bad links; replicas live on.

A node that leads beside the active is cut off with it. Clients, HAProxy and any database still reach that machine.
"""

from __future__ import annotations

import asyncio
import tomllib
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from time import monotonic_ns

import pytest

from ha.settings import ElectionSettings
from replica.config.file import render_config
from replica.config.model import WITHOUT_DATABASE
from replica.local.log_nodes import LogNodeProcess
from replica.local.participant import merged
from replica.log.raft.log import RaftLog
from replica.log.raft.log_settings import RaftLogSettings
from tests.faults.lab.lab import REPLICAS, Lab
from tests.faults.lab.scene import AFTER_S, scene, within
from tests.faults.recorder import Scenario
from tests.faults.scenarios import wait_for_return

_NO_NODES = "there are no log nodes"
pytestmark = [
    pytest.mark.not_on("kafka", _NO_NODES),
    pytest.mark.not_on("postgres", _NO_NODES),
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="session"),
]

ROUNDS = 2
CUT_S = 8.0  # of a cut that must have no effect: longer than lease, hold-down and every time-out
SLOW_S = 15.0
DELAY_S, LOSS = 0.1, 0.05
UNSERVED_S = 1.0
_TIMES = sorted(WITHOUT_DATABASE["election"].keys() - {"kind"})
LOSS_GOAL_S = 2.0  # an election of the nodes takes up to 0.4 s, and the replica finds the new leader
PARTITION_GOAL_S = 4.5  # lease + 1.5 s, as for a replica that is cut off from all brokers
HEALED_GOAL_S = 2.0


def others_than(name: str) -> list[str]:
    """The machines of the other replicas, with the log nodes there."""
    return [other for other in REPLICAS if other != name]


def cut_off(lab: Lab, name: str, way: str) -> AbstractContextManager[None]:
    """A machine is cut off from the other two: in both directions, or only what it sends, or what it receives."""
    own, others = [name], others_than(name)
    if way == "both":
        return lab.network.cut(own, others)
    return lab.network.cut(own, others, one_way=True) if way == "out" else lab.network.cut(others, own, one_way=True)


async def leading_node(lab: Lab) -> LogNodeProcess:
    """The log node that leads."""
    settings = lab.config.log.settings
    assert isinstance(settings, RaftLogSettings)
    log = RaftLog(settings)
    try:
        return lab.log_nodes[await log.leader()]
    finally:
        await log.close()


async def lagging_node(lab: Lab) -> LogNodeProcess:
    """One that does not lead, beside a passive."""
    leader, active = await leading_node(lab), await lab.wait_for_active()
    return next(node for name, node in lab.log_nodes.items() if node is not leader and name != active.name)


@asynccontextmanager
async def frozen_node(node: LogNodeProcess) -> AsyncIterator[None]:
    """It stands still while the block runs."""
    node.freeze_group()
    try:
        yield
    finally:
        node.thaw()


@pytest.mark.scenario("F11", "a log node is lost, its replica is not", outage_goal_s=LOSS_GOAL_S)
@pytest.mark.parametrize("which", ["leader", "follower"])
async def test_no_application_hears_of_a_lost_log_node(lab: Lab, scenario: Scenario, which: str) -> None:
    """Goal: the log goes on with two nodes. Method: kill -9 of the node that leads, or of another, time after time."""
    async with scene(lab, scenario) as now:
        for _ in range(ROUNDS):
            await now.active_replica()
            node = await (leading_node(lab) if which == "leader" else lagging_node(lab))
            fault_ns = monotonic_ns()
            node.kill_group()
            await now.served_since(fault_ns + 1_000_000_000)
            scenario.fired(f"log node {node.name}, {which}, killed; the log went on")
            await asyncio.sleep(AFTER_S)
            scenario.outage(now.load, fault_ns, monotonic_ns())
            await wait_for_return(lab)


@pytest.mark.scenario("F11", "a log node is frozen, its replica is not", outage_goal_s=PARTITION_GOAL_S)
@pytest.mark.parametrize("which", ["leader", "follower"])
async def test_a_frozen_log_node_is_left(lab: Lab, scenario: Scenario, which: str) -> None:
    """Goal: its replica goes on with another node, or another replica leads. Method: SIGSTOP and SIGCONT."""
    async with scene(lab, scenario) as now:
        for _ in range(ROUNDS):
            await now.active_replica()
            node = await (leading_node(lab) if which == "leader" else lagging_node(lab))
            fault_ns = monotonic_ns()
            async with frozen_node(node):
                await now.served_since(fault_ns + 1_000_000_000)
                await asyncio.sleep(CUT_S)
                scenario.fired(f"log node {node.name}, {which}, frozen; the log went on")
            scenario.outage(now.load, fault_ns, monotonic_ns())
            await wait_for_return(lab)


@pytest.mark.scenario("F26", "the active's machine is cut off from the other log nodes", outage_goal_s=PARTITION_GOAL_S)
@pytest.mark.parametrize("way", ["both", "out", "in"])
async def test_an_active_without_the_other_nodes_is_replaced(lab: Lab, scenario: Scenario, way: str) -> None:
    """Goal: who reaches a majority leads, and it stays so. Method: drop packets between the machines, each way or one
    way; HAProxy, clients and any database still reach the active."""
    async with scene(lab, scenario) as now:
        for _ in range(ROUNDS):
            active = await now.active_replica()
            epoch_before = now.claims.newest_epoch
            await now.replaced(cut_off(lab, active.name, way), active, f"cut off from the other log nodes ({way})")
            assert now.claims.newest_epoch - epoch_before <= 2, "leadership went to and fro"


@pytest.mark.scenario("F26", "such a cut is healed before anybody took over; from then", outage_goal_s=HEALED_GOAL_S)
async def test_a_short_cut_is_over_when_it_is_over(lab: Lab, scenario: Scenario) -> None:
    """Goal: nobody waits for nodes that are back. Method: heal in the middle of the outage."""
    async with scene(lab, scenario) as now:
        for _ in range(ROUNDS):
            active = await now.active_replica()
            with cut_off(lab, active.name, "both"):
                await asyncio.sleep(UNSERVED_S)
                scenario.fired(f"{active.name} cut off from the other log nodes for {UNSERVED_S:g} s")
            healed_ns = monotonic_ns()
            await now.served_since(healed_ns)
            scenario.served_again(now.load, healed_ns)
            await wait_for_return(lab)


@pytest.mark.scenario("F7", "a passive's machine is cut off from the other log nodes, and returns")
async def test_a_passive_without_the_other_nodes_disturbs_nobody(lab: Lab, scenario: Scenario) -> None:
    """Goal: only it notices; its return is no election. Method: drop its packets; health, epoch and leading node."""
    async with scene(lab, scenario) as now:
        active = await now.active_replica()
        leader = await leading_node(lab)
        name = next(name for name in REPLICAS if name not in (active.name, leader.name))
        epoch_before = now.claims.newest_epoch

        async def unready() -> bool:
            health = (await lab.healths())[name]
            return health is not None and not health.ready

        with cut_off(lab, name, "both"):
            await within(CUT_S, unready, f"{name} says that it is ready and cannot be")
            scenario.fired(f"{name} cut off from the other log nodes, and says that it is not ready")
            await asyncio.sleep(CUT_S)
        await wait_for_return(lab)
        assert now.claims.newest_epoch == epoch_before
        assert await leading_node(lab) is leader


@pytest.mark.scenario("F27", "the active's machine is cut off from one other log node only")
async def test_a_cut_between_two_nodes_disturbs_nobody(lab: Lab, scenario: Scenario) -> None:
    """Goal: a majority is enough, and the node that hears no leader deposes none. Method: drop packets between two."""
    async with scene(lab, scenario) as now:
        active = await now.active_replica()
        (other, _) = others_than(active.name)
        epoch_before = now.claims.newest_epoch
        with lab.network.cut([active.name], [other]):
            await asyncio.sleep(CUT_S)
            await now.served_since(monotonic_ns())
            scenario.fired(f"{active.name} cut off from {other} only, and served on")
        await wait_for_return(lab)
        assert now.claims.newest_epoch == epoch_before


@asynccontextmanager
async def longer_lease(lab: Lab) -> AsyncIterator[None]:
    """While the block runs, a lease is as long as where the lock is in a database, as docs/profiles.md says for bad
    links: at 0.1 s each way and 5 % lost, an answer of the log takes more than 0.9 s every few seconds."""
    if not lab.embedded:
        yield
        return
    as_usual = lab.config_path.read_text()
    longer = merged(tomllib.loads(as_usual), {"election": {name: getattr(ElectionSettings(), name) for name in _TIMES}})
    lab.config_path.write_text(render_config(longer, "A longer lease."))
    try:
        await _start_again(lab)
        yield
    finally:
        lab.config_path.write_text(as_usual)
        await _start_again(lab)


async def _start_again(lab: Lab) -> None:
    for replica in lab.replicas.values():
        await replica.stop()
        replica.start()
    await wait_for_return(lab)


@pytest.mark.scenario(
    "F30",
    f"slow and lossy links between log nodes: {DELAY_S:g} s each way, {LOSS:.0%} lost",
    outage_goal_s=PARTITION_GOAL_S,
)
async def test_bad_links_between_nodes_cost_time_and_nothing_else(lab: Lab, scenario: Scenario) -> None:
    """Goal: slower, and right. Method: delay and lose packets between the active's machine and the others."""
    async with longer_lease(lab), scene(lab, scenario) as now:
        active, fault_ns = await now.active_replica(), monotonic_ns()
        with lab.network.slowed([active.name], others_than(active.name), DELAY_S, LOSS):
            await asyncio.sleep(SLOW_S)
            scenario.fired(f"{active.name}: bad links for {SLOW_S:g} s")
            await now.served_since(monotonic_ns())
        await now.served_since(monotonic_ns())
        scenario.outage(now.load, fault_ns)
