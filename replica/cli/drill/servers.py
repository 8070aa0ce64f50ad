"""Failures of single servers, one after the other, under load: a replica, a broker, the database."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from replica.cli.common import DATA_FOLDER, say
from replica.cli.drill.report import Failure
from replica.cli.drill.under_load import Strike, measure
from replica.local.cluster import ClusterSettings, LocalCluster, remove_cluster
from replica.local.kafka import KafkaBroker
from replica.local.process import ServerFailed

FOLDER = DATA_FOLDER / "drill-servers"
BROKERS = 3
RETURNS_MAX_S = 60.0


async def kill_replica(cluster: LocalCluster) -> None:
    """SIGKILL for the active: core and front ends."""
    active = await cluster.active()
    if active is None:
        raise ServerFailed("no replica is active")
    cluster.kill(active.name)


async def kill_broker(cluster: LocalCluster) -> None:
    """SIGKILL for the broker that leads the request log."""
    await (await asyncio.to_thread(_leader, cluster)).process.kill()


async def kill_database(cluster: LocalCluster) -> None:
    """SIGKILL for the primary, and the promotion of its standby, as a manager of the database would do at once."""
    if cluster.postgres_standby is None:
        raise ServerFailed("the database has no standby")
    await cluster.postgres.kill()
    await cluster.postgres_standby.promote()


STRIKES: Mapping[str, tuple[str, Strike]] = {
    "replica": ("the active's processes killed", kill_replica),
    "broker": (f"the broker that leads the log killed, one of {BROKERS}", kill_broker),
    "database": ("the primary killed, its synchronous standby promoted at once", kill_database),
}


async def run(names: Sequence[str]) -> list[Failure]:
    """Measure these failures in a new cluster with three brokers and a standby database. Raises NotaryError."""
    if not names:
        return []
    await remove_cluster(FOLDER)
    settings = ClusterSettings(folder=FOLDER, brokers=BROKERS, database_standby=True)
    found = []
    async with LocalCluster(settings, say) as cluster:
        for name in names:
            found.append(await measure(cluster, name, *STRIKES[name]))
            await _made_whole(cluster)
    return found


async def _made_whole(cluster: LocalCluster) -> None:
    """Start again what was killed; a killed replica comes back by itself. An old primary stays down."""
    for broker in cluster.kafka.brokers:
        if not broker.process.running:
            broker.process.start()
            await broker.process.wait_ready(broker.listens, RETURNS_MAX_S)
    await cluster.wait_until_ready(list(cluster.replicas), RETURNS_MAX_S)


def _leader(cluster: LocalCluster) -> KafkaBroker:
    (partition,) = (
        cluster.kafka.admin().list_topics(cluster.topic, timeout=10).topics[cluster.topic].partitions.values()
    )
    return next(broker for broker in cluster.kafka.brokers if broker.node_id == partition.leader)
