"""A site loses all power while completions cannot be published, on real servers: what was answered is not spent again.

Two replicas that all serve, one broker. The broker's disk loses the log's newest records, and the indexes are moved
away: the published position, which lags, does not show the loss.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg
import pytest

from ledger_api.client import NotaryClient, RetryPolicy
from replica.local.cluster import ClusterSettings, LocalCluster
from replica.notary.answers import Notarised
from replica.notary.marks import read_mark
from replica.notary.requests import state_ref
from tests.ends import ends_by_design, guarded
from tests.faults.tools import refused_by_all
from tests.log_kind import is_embedded, log_of
from tests.promises import promised
from tests.waiting import eventually

pytestmark = [pytest.mark.thorough, pytest.mark.cluster, pytest.mark.only_kafka("another log is another disk")]

LOCK = "LOCK TABLE completion IN SHARE MODE"
WAIT_S = 90.0
BATCH, BATCHES = 20, 5
PATIENT = RetryPolicy(deadline_s=20.0, attempt_max_s=5.0)


@pytest.fixture
async def cluster(servers_folder: Path, request: pytest.FixtureRequest) -> AsyncIterator[LocalCluster]:
    settings = ClusterSettings(
        folder=servers_folder / "power-loss",
        api_workers=1,
        replicas=2,
        parties=1,
        log=log_of(request.config),
        embedded=is_embedded(request.config),
        further={"serving": "all"},
    )
    async with guarded(LocalCluster(settings)) as cluster:
        await eventually(lambda: all_serve(cluster), timeout_s=WAIT_S)
        yield cluster


async def all_serve(cluster: LocalCluster) -> bool:
    return all(health is not None and health.active for health in (await cluster.healths()).values())


@asynccontextmanager
async def client_of(cluster: LocalCluster, name: str) -> AsyncIterator[NotaryClient]:
    address = cluster.replicas[name].address
    async with NotaryClient(f"http://{address.host}:{address.api_port}", policy=PATIENT) as client:
        yield client


async def spend(cluster: LocalCluster, name: str, states: list[bytes]) -> list[bytes]:
    """Ask for a transaction that consumes each state; those that are notarised."""
    async with client_of(cluster, name) as client:
        asked = [client.submit(cluster.parties[0].sign(os.urandom(32), [state_ref(state, 0)])) for state in states]
        answers = await asyncio.gather(*asked)
    return [state for state, answer in zip(states, answers, strict=True) if isinstance(answer, Notarised)]


async def applied(cluster: LocalCluster) -> int:
    return max(health.applied_offset for health in (await cluster.healths()).values() if health is not None)


def cut_log(cluster: LocalCluster, size: int) -> None:
    """Lose the newest records, as a disk does that was not synced when its power went."""
    partition = cluster.kafka.brokers[0].folder / "data" / f"{cluster.topic}-0"
    (segment,) = partition.glob("*.log")
    os.truncate(segment, size)
    for index in (*partition.glob("*.index"), *partition.glob("*.timeindex")):
        index.unlink()
    (partition.parent / ".kafka_cleanshutdown").unlink(missing_ok=True)


def written(cluster: LocalCluster) -> int:
    (segment,) = (cluster.kafka.brokers[0].folder / "data" / f"{cluster.topic}-0").glob("*.log")
    return segment.stat().st_size


def index_of(cluster: LocalCluster, name: str) -> Path:
    return cluster.config.replica_dir(name) / "index"


async def none_serves(cluster: LocalCluster) -> None:
    with ends_by_design(*cluster.replicas.values()):
        await refused_by_all(cluster, "LOG_TRUNCATED")
    promised(not any(replica.running for replica in cluster.replicas.values()), "a replica serves")


async def test_what_was_answered_before_a_power_cut_is_not_spent_again(cluster: LocalCluster) -> None:
    """Goal: an answer outlives the power cut, or nobody serves. Method: lock, answer, kill all, cut the log; no index
    is left, then one is."""
    await spend(cluster, "r1", [os.urandom(32) for _ in range(BATCH)])
    async with await psycopg.AsyncConnection.connect(cluster.owner_dsn()) as locker:
        await locker.execute(LOCK)
        before = written(cluster)
        answered: list[bytes] = []
        for batch in range(BATCHES):
            answered += await spend(cluster, ("r1", "r2")[batch % 2], [os.urandom(32) for _ in range(BATCH)])
        assert len(answered) > BATCH
        end = await applied(cluster)
        await eventually(lambda: is_marked(cluster, end), timeout_s=WAIT_S)
        with ends_by_design(*cluster.replicas.values()):
            for name in cluster.replicas:
                cluster.kill(name)
            await asyncio.gather(*(replica.stop() for replica in cluster.replicas.values()))
        await cluster.kafka.brokers[0].process.kill()
    cut_log(cluster, before)
    for name in cluster.replicas:
        index_of(cluster, name).rename(index_of(cluster, name).with_name("index-moved"))
    await cluster.kafka.start()
    await none_serves(cluster)
    left = index_of(cluster, "r1")
    shutil.rmtree(left, ignore_errors=True)
    left.with_name("index-moved").rename(left)
    await none_serves(cluster)


async def is_marked(cluster: LocalCluster, offset: int) -> bool:
    """Whether each replica's seen file has a mark at least there: it writes within 0.2 s."""
    for name, health in (await cluster.healths()).items():
        if health is None or health.marks is None:
            return False
        mark = read_mark(health.marks.synced.get(name, ""))
        if mark is None or mark.offset < offset:
            return False
    return True
