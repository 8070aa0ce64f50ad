"""The runbook of a power cut, on three real brokers: a killed broker whose segment is cut has lost what was not synced.

What an un-synced file system really loses is played in the lab (tests/faults); here the steps are, and which copy wins.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from pathlib import Path

import pytest

from replica.local.cluster import ClusterSettings
from replica.local.kafka import KafkaBroker
from tests.faults.load import ClientLoad
from tests.runbooks.conftest import all_well, staged, under_load
from tests.runbooks.stage import Stage
from tests.waiting import eventually

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(1_200),
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.only_kafka("there is no broker"),
]
PAGE = "power-lost"
MORE = 20  # answers after which what was played before is surely followed by others
MORE_MAX_S = 120.0


async def test_power_lost(folder: Path) -> None:
    """Goal: no answer is lost with all power, un-synced tails or the leader's disk, whomever Kafka elects. Method: cut
    the power; again, with two copies cut short, the leader's most; again, with one broker left behind and the leader's
    disk gone. Play the page each time, under load, and check every answer against the log."""
    async with staged(ClusterSettings(folder=folder / "power", brokers=3)) as stage:
        async with under_load(stage, "power") as load:
            await _whole_site(stage, load)
            await _tails_that_were_not_synced(stage, load)
            await _a_disk_is_gone(stage, load)
        stage.assert_all_played(PAGE)


async def _whole_site(stage: Stage, load: ClientLoad) -> None:
    await _cut_power(stage)
    await _start(stage, stage.cluster.kafka.brokers, load)


async def _tails_that_were_not_synced(stage: Stage, load: ClientLoad) -> None:
    brokers, leader = stage.cluster.kafka.brokers, await _leader(stage)
    best, other = (broker for broker in brokers if broker is not leader)
    await _cut_power(stage)
    _cut_tail(stage, leader, 20_000)
    _cut_tail(stage, other, 5_000)
    ends = {broker.node_id: await _end(stage, broker) for broker in brokers}
    assert ends[best.node_id] > ends[other.node_id] > ends[leader.node_id], ends
    await _one_copy_for_all(stage, best, [leader, other], brokers)
    await _start(stage, brokers, load)


async def _a_disk_is_gone(stage: Stage, load: ClientLoad) -> None:
    brokers, leader = stage.cluster.kafka.brokers, await _leader(stage)
    best, behind = (broker for broker in brokers if broker is not leader)
    await behind.process.kill()
    await _more_answers(load)  # which the two others alone have
    await _cut_power(stage)
    shutil.rmtree(leader.folder / "data")
    assert await _end(stage, best) > await _end(stage, behind)
    await _one_copy_for_all(stage, best, [behind], [best, behind])
    await eventually(lambda: _leads(stage, {best, behind}), 60.0)
    await _format(stage, leader)
    await _start(stage, brokers, load)


async def _cut_power(stage: Stage) -> None:
    """SIGKILL for all brokers and replicas at once; nobody starts again by itself."""
    cluster = stage.cluster
    for replica in cluster.replicas.values():
        replica.kill_group()
    await asyncio.gather(*(broker.process.kill() for broker in cluster.kafka.brokers))
    await asyncio.gather(*(replica.stop() for replica in cluster.replicas.values()))


def _cut_tail(stage: Stage, broker: KafkaBroker, lost_bytes: int) -> None:
    """Take the end of the log from a broker's disk."""
    newest = sorted((broker.folder / "data" / f"{stage.cluster.topic}-0").glob("*.log"))[-1]
    assert newest.stat().st_size > lost_bytes
    os.truncate(newest, newest.stat().st_size - lost_bytes)


async def _end(stage: Stage, broker: KafkaBroker) -> tuple[int, int]:
    """How far a copy goes, as the page's check tells: epoch and offset; nothing where there is none."""
    printed = await stage.play(PAGE, "Checks", LOG_DIR=str(broker.folder / "data"))
    offset, epoch = re.search(r"lastOffset: (\d+)", printed), re.search(r"partitionLeaderEpoch: (\d+)", printed)
    assert offset and epoch, printed
    return int(epoch[1]), int(offset[1])


async def _one_copy_for_all(
    stage: Stage, best: KafkaBroker, others: list[KafkaBroker], with_copy: list[KafkaBroker]
) -> None:
    """The part's blocks, each on the machines that the page says."""
    part = ("Steps", "One copy for all")
    variables = {"REPLICAS": " ".join(stage.cluster.replicas), "BROKERS": _numbers(with_copy)}
    blocks = stage.blocks(PAGE, *part)
    stop, copy, replace, start, elect = blocks
    await stage.run(PAGE, stop, variables)
    for broker in with_copy:
        await stage.run(PAGE, copy, {"LOG_DIR": str(broker.folder / "data")})
    for broker in others:
        await stage.run(PAGE, replace, {"LOG_DIR": str(broker.folder / "data"), "BEST": str(best.folder / "data")})
        assert await _end(stage, broker) == await _end(stage, best)
    await stage.run(PAGE, start, variables)
    await stage.run(PAGE, elect, variables)
    for broker in with_copy:
        shutil.rmtree(broker.folder / "data.after-the-cut")


async def _start(stage: Stage, brokers: list[KafkaBroker], load: ClientLoad) -> None:
    variables = {"REPLICAS": " ".join(stage.cluster.replicas), "BROKERS": _numbers(brokers)}
    await stage.play(PAGE, "Steps", "Start", **variables)
    await stage.play(PAGE, "Verification")
    await all_well(stage)
    await _more_answers(load)


async def _more_answers(load: ClientLoad) -> None:
    before = len(load.successes_ns())

    async def there_are() -> bool:
        return len(load.successes_ns()) > before + MORE

    await eventually(there_are, MORE_MAX_S)


async def _leader(stage: Stage) -> KafkaBroker:
    kafka, topic = stage.cluster.kafka, stage.cluster.topic
    found = await asyncio.to_thread(kafka.admin().list_topics, topic, timeout=10)
    number = found.topics[topic].partitions[0].leader
    return next(broker for broker in kafka.brokers if broker.node_id == number)


async def _leads(stage: Stage, brokers: set[KafkaBroker]) -> bool:
    found = await asyncio.to_thread(stage.cluster.kafka.admin().list_topics, stage.cluster.topic, timeout=10)
    return found.topics[stage.cluster.topic].partitions[0].leader in {broker.node_id for broker in brokers}


async def _format(stage: Stage, broker: KafkaBroker) -> None:
    """A new disk for a broker: formatted for the same cluster, with its number."""
    brokers = stage.cluster.kafka.brokers
    voters = ",".join(f"{one.node_id}@{one.machine.address}:{one.controller_port}" for one in brokers)
    await broker.format((stage.cluster.kafka.folder / "cluster.id").read_text(), voters, len(brokers))


def _numbers(brokers: list[KafkaBroker]) -> str:
    return " ".join(str(broker.node_id) for broker in brokers)
