"""Links between brokers, and between some replicas and some brokers, are cut, each way and one way, or are bad.

A leader that is cut off from its peers goes on answering: without errors, but without new records.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from time import monotonic_ns

import pytest

from replica.local.kafka import KafkaBroker
from tests.faults.lab.brokers import in_sync, start_again
from tests.faults.lab.lab import BROKERS, Lab
from tests.faults.lab.scene import AFTER_S, Scene, scene, within
from tests.faults.recorder import Scenario

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.only_kafka("there is no broker"),
    pytest.mark.cluster,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="session"),
]

slow = pytest.mark.slow  # CI plays one cut of the leader and one of the active, each once
ISOLATED_GOAL_S = 15.0  # Kafka elects after 1.5 s and more, and each client finds out for itself
HEALED_GOAL_S = 2.0
REPLICA_GOAL_S = 4.5  # as for a replica that is cut off from all brokers
CUT_S = 8.0  # of a cut that must have no effect: longer than lease, hold-down and every time-out
UNSERVED_S = 3.0  # into an outage
SLOW_S = 15.0
DELAY_S, LOSS = 0.1, 0.05


def machine_of(broker: KafkaBroker) -> str:
    """The name of the machine that a broker runs on."""
    return f"k{broker.node_id}"


def peers_of(broker: KafkaBroker) -> list[str]:
    """The machines of the other brokers."""
    return [name for name in BROKERS if name != machine_of(broker)]


def cut_off(lab: Lab, leader: KafkaBroker, way: str) -> AbstractContextManager[None]:
    """The leader is cut off from its peers: in both directions, or only what it sends, or only what it receives."""
    own, others = [machine_of(leader)], peers_of(leader)
    if way == "both":
        return lab.network.cut(own, others)
    return lab.network.cut(own, others, one_way=True) if way == "out" else lab.network.cut(others, own, one_way=True)


async def served_meanwhile(now: Scene, fault_ns: int) -> None:
    """Wait until the log goes on without the leader that was cut off, and clients are served from it."""
    await now.served_since(fault_ns + 3_000_000_000)  # records on their way have been read back by then


@pytest.mark.scenario(
    "F26", "the partition's leader is cut off from the other brokers only", outage_goal_s=ISOLATED_GOAL_S
)
@pytest.mark.parametrize(
    ("way", "times"),
    [
        pytest.param("both", 1, marks=pytest.mark.short, id="both, once"),
        *(pytest.param(way, 2, marks=slow, id=way) for way in ("both", "out", "in")),
    ],
)
async def test_a_leader_without_its_peers_is_left(lab: Lab, scenario: Scenario, way: str, times: int) -> None:
    """Goal: all find the new leader, although the old one answers. Method: drop packets between brokers, for one or two
    leaders in turn; few epochs are spent."""
    async with scene(lab, scenario) as now:
        for _ in range(times):
            await now.active_replica()
            leader, epoch_before, fault_ns = lab.leader(), now.claims.newest_epoch, monotonic_ns()
            with cut_off(lab, leader, way):
                await served_meanwhile(now, fault_ns)
                until_ns = monotonic_ns()
                spent = now.claims.newest_epoch - epoch_before
                scenario.fired(f"{machine_of(leader)} cut off ({way}), then served; {spent} epochs")
            scenario.outage(now.load, fault_ns, until_ns)
            assert spent <= 3, "epochs were spent on a log that does not move"
            await in_sync(lab, 3)


@slow
@pytest.mark.scenario(
    "F26", "the leader that was cut off is joined again, the service being back; from then", outage_goal_s=HEALED_GOAL_S
)
async def test_a_leader_that_comes_back_is_hardly_noticed(lab: Lab, scenario: Scenario) -> None:
    """Goal: no second outage. Method: cut, wait for the service, heal; the pause around the healing."""
    async with scene(lab, scenario) as now:
        await now.active_replica()
        leader, fault_ns = lab.leader(), monotonic_ns()
        with cut_off(lab, leader, "both"):
            await served_meanwhile(now, fault_ns)
            scenario.fired(f"{machine_of(leader)} cut off, then served, then joined")
            healed_ns = monotonic_ns()
        await now.served_since(monotonic_ns() + 3_000_000_000)
        scenario.outage(now.load, healed_ns)


@slow
@pytest.mark.scenario(
    "F26",
    "the leader that was cut off is joined again before anybody is served; from then",
    outage_goal_s=HEALED_GOAL_S,
)
async def test_a_short_cut_of_the_leader_is_over_when_it_is_over(lab: Lab, scenario: Scenario) -> None:
    """Goal: no replica waits for brokers that are back. Method: heal in the middle of the outage."""
    async with scene(lab, scenario) as now:
        for _ in range(2):
            await now.active_replica()
            leader = lab.leader()
            with cut_off(lab, leader, "both"):
                await asyncio.sleep(UNSERVED_S)
                scenario.fired(f"{machine_of(leader)} cut off for {UNSERVED_S:g} s")
            healed_ns = monotonic_ns()
            await now.served_since(healed_ns)
            scenario.served_again(now.load, healed_ns)
            await in_sync(lab, 3)


@slow
@pytest.mark.scenario(
    "F27", "the partition's leader is cut off from the controller only", outage_goal_s=ISOLATED_GOAL_S
)
async def test_a_leader_without_the_controller_is_left(lab: Lab, scenario: Scenario) -> None:
    """Goal: the controller moves the leadership, and all find it. Method: drop packets between just those two."""
    async with scene(lab, scenario) as now:
        await now.active_replica()
        while (leader := lab.leader()) is (controller := lab.controller()):
            await leader.process.stop(30.0)  # both roles move, perhaps to different brokers
            await start_again(lab, leader)
        await asyncio.sleep(AFTER_S)
        fault_ns = monotonic_ns()
        with lab.network.cut([machine_of(leader)], [machine_of(controller)]):
            await served_meanwhile(now, fault_ns)
            until_ns = monotonic_ns()
            scenario.fired(f"{machine_of(leader)}, leader, cut off from {machine_of(controller)}, controller")
        scenario.outage(now.load, fault_ns, until_ns)
        await in_sync(lab, 3)


@pytest.mark.scenario("F28", "the active is cut off from the partition's leader only", outage_goal_s=REPLICA_GOAL_S)
@pytest.mark.parametrize(
    "times", [pytest.param(1, marks=pytest.mark.short, id="once"), pytest.param(2, marks=slow, id="twice")]
)
async def test_an_active_without_the_leader_hands_over(lab: Lab, scenario: Scenario, times: int) -> None:
    """Goal: a peer that reaches the leader leads. Method: drop packets between those two; two other brokers answer."""
    async with scene(lab, scenario) as now:
        for _ in range(times):
            active = await now.active_replica()
            cut = lab.network.cut([active.name], [machine_of(lab.leader())])
            await now.replaced(cut, active, "cut off from the leader")


@slow
@pytest.mark.scenario("F28", "a passive is cut off from the partition's leader only")
async def test_a_passive_without_the_leader_disturbs_nobody(lab: Lab, scenario: Scenario) -> None:
    """Goal: only it notices. Method: drop its packets to the leader; its health, and the epoch."""
    async with scene(lab, scenario) as now:
        await now.active_replica()
        (passive, _) = await lab.passives()
        epoch_before = now.claims.newest_epoch

        async def unready() -> bool:
            health = (await lab.healths())[passive.name]
            return health is not None and not health.ready

        with lab.network.cut([passive.name], [machine_of(lab.leader())]):
            await within(CUT_S, unready, f"{passive.name} says that it is ready and cannot be")
            scenario.fired(f"{passive.name} cut off from the leader, and says that it is not ready")
            await asyncio.sleep(CUT_S)
        assert now.claims.newest_epoch == epoch_before


@slow
@pytest.mark.scenario("F29", "the active and a passive are cut off from one broker", outage_goal_s=REPLICA_GOAL_S)
@pytest.mark.parametrize("which", ["leader", "follower"])
async def test_two_replicas_without_one_broker(lab: Lab, scenario: Scenario, which: str) -> None:
    """Goal: the third leads when it is the partition's leader, and nothing happens when not. Method: drop packets."""
    async with scene(lab, scenario) as now:
        active = await now.active_replica()
        leader, (passive, third) = lab.leader(), await lab.passives()
        broker = leader if which == "leader" else next(one for one in lab.kafka.brokers if one is not leader)
        cut = lab.network.cut([active.name, passive.name], [machine_of(broker)])
        if which == "leader":
            await now.replaced(cut, active, f"and {passive.name} cut off from {machine_of(broker)}")
            assert scenario.faults[-1].endswith(f"{third.name} took over")
            return
        epoch_before, fault_ns = now.claims.newest_epoch, monotonic_ns()
        with cut:
            await asyncio.sleep(CUT_S)
            scenario.fired(f"{active.name} and {passive.name} cut off from {machine_of(broker)}, a follower")
        assert now.claims.newest_epoch == epoch_before
        scenario.outage(now.load, fault_ns)


@slow
@pytest.mark.scenario(
    "F30",
    f"slow and lossy links between brokers: {DELAY_S:g} s each way, {LOSS:.0%} lost",
    outage_goal_s=ISOLATED_GOAL_S,
)
async def test_bad_links_between_brokers_cost_time_and_nothing_else(lab: Lab, scenario: Scenario) -> None:
    """Goal: slower, and right. Method: delay and lose packets between the leader and its peers for a while."""
    async with scene(lab, scenario) as now:
        await now.active_replica()
        leader, fault_ns = lab.leader(), monotonic_ns()
        with lab.network.slowed([machine_of(leader)], peers_of(leader), DELAY_S, LOSS):
            await asyncio.sleep(SLOW_S)
            scenario.fired(f"{machine_of(leader)}: bad links for {SLOW_S:g} s")
            await now.served_since(monotonic_ns())
        await now.served_since(monotonic_ns())
        scenario.outage(now.load, fault_ns)
        await in_sync(lab, 3)
