"""The lab: a whole participant like the reference deployment's, every part on a machine of its own.

A primary and a synchronous standby, three brokers, three replicas, HAProxy. Machines are made by `network`.
"""

from __future__ import annotations

from pathlib import Path
from time import monotonic_ns

from confluent_kafka.admin import PartitionMetadata

from replica.local.cluster import STANDBY_NAME, ClusterSettings, LocalCluster
from replica.local.kafka import KafkaBroker
from replica.local.postgres import PostgresServer
from replica.local.process import ServerFailed
from tests.faults.lab.network import Network, network_of

REPLICAS = ("r1", "r2", "r3")
BROKERS = ("k1", "k2", "k3")
DATABASES = ("db1", "db2")
BALANCER = "lb"


class Lab(LocalCluster):
    """A cluster whose machines can be cut off from one another: see `network`."""

    def __init__(self, folder: Path, network: Network) -> None:
        hosts = (*REPLICAS, *BROKERS, *DATABASES, BALANCER)
        settings = ClusterSettings(
            folder=folder,
            replicas=len(REPLICAS),
            brokers=len(BROKERS),
            database_standby=True,
            api_workers=1,
            machines={name: network.machine(name) for name in hosts},
        )
        super().__init__(settings)
        self.network = network

    # ---- the database ----

    @property
    def primary(self) -> PostgresServer:
        """The server that is the primary now: `promote` makes it another one."""
        return self.postgres

    def machine_of(self, server: PostgresServer) -> str:
        """The name of the machine that a database server runs on."""
        return next(name for name in DATABASES if self.network.machine(name) == server.machine)

    async def promote(self) -> int:
        """Make the standby the primary, which waits for no standby; the moment when that was done, monotonic ns.

        Whoever was the primary before is left as it is.
        """
        promoted = self._standby()
        await promoted.promote()
        moment_ns = monotonic_ns()
        self.postgres, self.postgres_standby = promoted, self.postgres
        return moment_ns

    async def rejoin(self, server: PostgresServer) -> None:
        """Make a server that was a primary, and is stopped, the synchronous standby of the one that is."""
        await server.remove()
        await server.start_standby_of(self.postgres, STANDBY_NAME)
        await self.postgres.require_standby(STANDBY_NAME)

    def _standby(self) -> PostgresServer:
        if self.postgres_standby is None:
            raise ServerFailed("the lab's database has no standby")
        return self.postgres_standby

    # ---- the brokers ----

    def leader(self) -> KafkaBroker:
        """The broker that leads the log's partition. Blocks for a moment."""
        number = self._partition().leader
        return next(broker for broker in self.kafka.brokers if broker.node_id == number)

    def in_sync(self) -> list[int]:
        """Brokers with all of the log, by number. Blocks for a moment."""
        return list(self._partition().isrs)

    def _partition(self) -> PartitionMetadata:
        return self.kafka.admin().list_topics(self.topic, timeout=10.0).topics[self.topic].partitions[0]


def lab_network() -> Network:
    """The network of one lab, not yet built."""
    return network_of((*REPLICAS, *BROKERS, *DATABASES, BALANCER))
