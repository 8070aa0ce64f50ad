"""Brokers are lost, one after the other, and come back; once fewer are in sync than the topic asks for."""

from __future__ import annotations

import asyncio
from time import monotonic_ns

import pytest

from tests.faults.lab.brokers import down, in_sync, start_again
from tests.faults.lab.lab import Lab
from tests.faults.lab.scene import AFTER_S, scene
from tests.faults.recorder import Scenario

pytestmark = [
    pytest.mark.only_kafka("there is no broker"),
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="session"),
]

ROUNDS = 3
SHORT_S = 6.0
LOSS_GOAL_S = 4.5  # as for a partition: lease + 1.5 s
RETURN_GOAL_S = 2.5  # who was in hold-down, and who waits for the client's next attempt, come first


@pytest.mark.scenario("F11", "a broker is lost", outage_goal_s=LOSS_GOAL_S)
@pytest.mark.parametrize("which", ["follower", "leader"])
async def test_no_application_hears_of_a_lost_broker(lab: Lab, scenario: Scenario, which: str) -> None:
    """Goal: the log goes on with two brokers. Method: kill -9 of the partition's leader, or of a follower."""
    async with scene(lab, scenario) as now:
        for _ in range(ROUNDS):
            await now.active_replica()
            leader = lab.leader()
            broker = leader if which == "leader" else next(one for one in lab.kafka.brokers if one is not leader)
            fault_ns = monotonic_ns()
            async with down(lab, broker):
                await now.served_since(fault_ns + 1_000_000_000)
                await in_sync(lab, 2)
                scenario.fired(f"broker {broker.node_id}, {which}, killed; {len(lab.in_sync())} in sync")
                await asyncio.sleep(AFTER_S)
                until_ns = monotonic_ns()
            scenario.outage(now.load, fault_ns, until_ns)


@pytest.mark.scenario("F11", "a broker is stopped in order, the leader moves", outage_goal_s=LOSS_GOAL_S)
async def test_a_leader_moves_without_a_word(lab: Lab, scenario: Scenario) -> None:
    """Goal: a rolling restart of brokers is not noticed. Method: SIGTERM of the leader, each time."""
    async with scene(lab, scenario) as now:
        for _ in range(ROUNDS):
            await now.active_replica()
            broker, fault_ns = lab.leader(), monotonic_ns()
            await broker.process.stop(30.0)
            await now.served_since(monotonic_ns())
            scenario.fired(f"broker {broker.node_id} stopped, broker {lab.leader().node_id} leads")
            scenario.outage(now.load, fault_ns, monotonic_ns())
            await start_again(lab, broker)


@pytest.mark.scenario(
    "F11", "fewer brokers in sync than the topic asks for; from their return", outage_goal_s=RETURN_GOAL_S
)
async def test_too_few_brokers_in_sync_is_a_reason_to_wait(lab: Lab, scenario: Scenario) -> None:
    """Goal: NOT_ENOUGH_REPLICAS is tried again; no false conflict. Method: ask for three copies, kill one broker."""
    async with scene(lab, scenario) as now:
        await now.active_replica()
        await lab.kafka.set_topic_config(lab.topic, {"min.insync.replicas": "3"})
        try:
            broker = next(one for one in lab.kafka.brokers if one is not lab.leader())
            async with down(lab, broker):
                await in_sync(lab, 2)
                scenario.fired(f"broker {broker.node_id} killed, 2 in sync of 3 that must be")
                await asyncio.sleep(SHORT_S)
                await lab.kafka.set_topic_config(lab.topic, {"min.insync.replicas": "2"})
                enough_ns = monotonic_ns()
                await now.served_since(enough_ns)
        finally:
            await lab.kafka.set_topic_config(lab.topic, {"min.insync.replicas": "2"})
        scenario.served_again(now.load, enough_ns)
