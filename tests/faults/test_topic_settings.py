"""The topic's settings become dangerous under running replicas: every replica reports it, and none ends."""

from __future__ import annotations

import asyncio

import pytest

from replica.local.cluster import LocalCluster
from tests.faults.recorder import Scenario
from tests.faults.test_system import epoch_of
from tests.faults.tools import Words, doctor, samples
from tests.faults.under_load import under_load
from tests.promises import promised
from tests.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="session")]

FURTHER = {"core": {"log_check_every_s": 1.0}}
TOLD_MAX_S = 30.0
DANGERS = {  # what each would do is far away: nothing is lost while the scenario runs
    "retention.ms": ("86400000", "-1"),
    "retention.bytes": (str(2**40), "-1"),
    "unclean.leader.election.enable": ("true", "false"),
    "flush.messages": ("10000", "1"),
}


@pytest.mark.thorough
@pytest.mark.only_kafka(
    "no setting of a server deletes records; settings that forget commits: log_postgres/test_damage.py"
)
@pytest.mark.scenario("F35", "the topic's settings become dangerous under running replicas, and safe again")
async def test_dangerous_settings_are_told_and_end_nobody(cluster: LocalCluster, scenario: Scenario) -> None:
    """Goal: an alert and a finding while the records are still there; no replica ends, no epoch is lost. Method: change
    one setting after the other under load; every replica and the doctor report it; change them back."""
    async with under_load(cluster, scenario) as load:
        before = await epoch_of(cluster)
        words = {replica: Words(replica) for replica in cluster.replicas.values()}
        for count, (name, (dangerous, _)) in enumerate(DANGERS.items(), 1):
            await cluster.kafka.set_topic_config(cluster.topic, {name: dangerous})
            await hazards(cluster, count)
            for said in words.values():
                await said.come(f"{name} is {dangerous}", TOLD_MAX_S)
            scenario.fired(f"{name} = {dangerous}, told by {', '.join(cluster.replicas)}")
        found = await doctor(cluster)
        assert all(name in found["log-contract"] for name in DANGERS), found
        for name, (_, safe) in DANGERS.items():
            await cluster.kafka.set_topic_config(cluster.topic, {name: safe})
        await hazards(cluster, 0)
        promised(await epoch_of(cluster) == before, "an epoch was lost to a setting")
    assert load.given_up() == 0
    assert not await doctor_of_topic(cluster)


async def hazards(cluster: LocalCluster, count: int) -> None:
    """Return once every replica has this number in its metrics, which an alert watches: monitoring/alerts.yml."""

    async def all_tell() -> bool:
        replicas = cluster.replicas.values()
        found = await asyncio.gather(*(asyncio.to_thread(samples, one, "notary_log_hazards") for one in replicas))
        return all(sum(sample.value for sample in each) == count for each in found)

    await eventually(all_tell, TOLD_MAX_S)


async def doctor_of_topic(cluster: LocalCluster) -> str:
    """What the doctor has against the topic's settings."""
    return (await doctor(cluster)).get("log-contract", "")
