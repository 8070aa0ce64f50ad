"""The runbook of split topics, there and back. See test_runbooks."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ledger_api.client import NotaryClient
from replica.local.cluster import ClusterSettings
from replica.log.kafka.pointers import payload_topic
from replica.log.kafka.settings import KafkaSettings
from replica.log.kafka.topic import TopicAdmin, has_payload_topic
from replica.notary.answers import Notarised
from replica.notary.requests import state_ref
from tests.runbooks.conftest import all_well, staged
from tests.runbooks.stage import Stage
from tests.waiting import eventually

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.asyncio(loop_scope="session"),
]

PARTITIONS = 2
LARGE_STATES = 400  # 14 kB
FEW = 10


async def test_split_topics(folder: Path) -> None:
    """Goal: a deployment that has records is split and made simple again, without an outage or a changed answer.
    Method: play the page while a client submits large requests; they go whole, then apart, then whole again; afterwards
    every answer is looked up in a log that has pointers."""
    async with staged(ClusterSettings(folder=folder / "split", log="kafka")) as stage:
        settings = stage.cluster.config.log.settings
        assert isinstance(settings, KafkaSettings)
        await all_well(stage)
        async with large_requests(stage) as answers:
            await few_more(answers)
            assert not has_payload_topic(settings)
            await stage.play("split-topics", "Checks")
            await stage.play("split-topics", "Steps", "There", PARTITIONS=str(PARTITIONS))
            await restart_all(stage)
            await few_more(answers)
            assert await payloads_in(settings) >= FEW
            await stage.play("split-topics", "Verification")
            await stage.play("split-topics", "Steps", "Back")
            await restart_all(stage)
            split = await payloads_in(settings)
            await few_more(answers)
            assert await payloads_in(settings) == split
            await stage.play("split-topics", "Verification")
        async with NotaryClient(stage.cluster.endpoint) as client:
            for tx_id, answer in answers.items():
                found = await client.look_up(tx_id)
                assert isinstance(found, Notarised) and found.log_offset == answer.log_offset
    stage.assert_all_played("split-topics")


@asynccontextmanager
async def large_requests(stage: Stage) -> AsyncIterator[dict[bytes, Notarised]]:
    """Large requests one after the other; each is notarised, whatever is restarted. The answers so far, by id."""
    answers: dict[bytes, Notarised] = {}
    async with NotaryClient(stage.cluster.endpoint) as client, asyncio.TaskGroup() as tasks:

        async def submit() -> None:
            while True:
                tx_id = os.urandom(32)
                states = [state_ref(os.urandom(32), number) for number in range(LARGE_STATES)]
                answer = await client.submit(stage.cluster.parties[0].sign(tx_id, states))
                assert isinstance(answer, Notarised), answer
                answers[tx_id] = answer

        task = tasks.create_task(submit())
        yield answers
        task.cancel()


async def few_more(answers: Mapping[bytes, Notarised]) -> None:
    """Return once there are some more answers, to requests that were sent after this call but for the first one."""
    count = len(answers) + 1 + FEW

    async def came() -> bool:
        return len(answers) >= count

    await eventually(came, 60.0)


async def restart_all(stage: Stage) -> None:
    """Play the restart for each replica, the active one last."""
    cluster = stage.cluster
    active = await cluster.wait_for_active()
    for replica in [*await cluster.passives(), active]:
        at = cluster.config.replica(replica.name)
        await stage.play("split-topics", "Steps", "Restart", R=replica.name, HEALTH=f"{at.host}:{at.health_port}")
    await all_well(stage)


async def payloads_in(settings: KafkaSettings) -> int:
    admin = TopicAdmin(settings)
    try:
        return sum([await admin.end_of(payload_topic(settings.topic), number) for number in range(PARTITIONS)])
    finally:
        await admin.close()
