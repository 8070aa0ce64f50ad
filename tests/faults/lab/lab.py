"""The lab: a whole participant like the reference deployment's, every part on a machine of its own.

A primary and a synchronous standby unless there is no database, three brokers where the log is on Kafka, three replicas
with a log node each where it is on those, HAProxy. Machines are made by `namespaces`.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic_ns
from types import MappingProxyType
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import PartitionMetadata

from replica.local.cluster import STANDBY_NAME, ClusterSettings, LocalCluster, LogKind
from replica.local.kafka import KafkaBroker
from replica.local.postgres import PostgresServer
from replica.local.process import ServerFailed
from tests.faults.lab.namespaces import Namespaces
from tests.watched import RunningWatch

REPLICAS = ("r1", "r2", "r3")
BROKERS = ("k1", "k2", "k3")
DATABASES = ("db1", "db2")
BALANCER = "lb"
METADATA_MAX_S = 5.0
METADATA_ATTEMPTS = 3
NO_SETTINGS: Mapping[str, Any] = MappingProxyType({})


class Lab(LocalCluster):
    """A cluster whose machines can be cut off from one another: see `namespaces`."""

    def __init__(
        self, folder: Path, network: Namespaces, log: LogKind, embedded: bool, further: Mapping[str, Any] = NO_SETTINGS
    ) -> None:
        """`further`: settings on top of a cluster's own, nested as in the configuration file."""
        settings = ClusterSettings(
            folder=folder,
            replicas=len(REPLICAS),
            log=log,
            embedded=embedded,
            haproxy=True,
            brokers=len(BROKERS),
            database_standby=not embedded,
            api_workers=1,
            further=further,
            machines={name: network.machine(name) for name in machines_of(log, embedded)},
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

        The old primary is left as it is.
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

    # ---- the replicas ----

    def watch(self, name: str) -> RunningWatch:
        """A watch for a replica, not started yet, on the replica's own machine."""
        return RunningWatch(self, name, machine=self.network.machine(name))

    # ---- the brokers ----

    def leader(self) -> KafkaBroker:
        """The broker that leads the log's partition. Blocks for a moment."""
        number = self._partition().leader
        return next(broker for broker in self.kafka.brokers if broker.node_id == number)

    def controller(self) -> KafkaBroker:
        """The broker that is the active controller. Blocks for a moment."""
        asked = self.kafka.brokers[0]
        number = quorum_leader(asked.machine.address, asked.port)
        return next(broker for broker in self.kafka.brokers if broker.node_id == number)

    def in_sync(self) -> list[int]:
        """Brokers with all of the log, by number. Blocks for a moment."""
        return list(self._partition().isrs)

    def _partition(self) -> PartitionMetadata:
        for _ in range(METADATA_ATTEMPTS - 1):  # the client may have asked the broker that was just killed
            with suppress(KafkaException):
                return self._metadata()
        return self._metadata()

    def _metadata(self) -> PartitionMetadata:
        return self.kafka.admin().list_topics(self.topic, timeout=METADATA_MAX_S).topics[self.topic].partitions[0]


def quorum_leader(host: str, port: int) -> int:
    """Node id of the active controller, by Kafka's request DescribeQuorum, which our client lacks."""
    name = b"__cluster_metadata"
    head = struct.pack(">hhih", 55, 0, 1, -1) + b"\x00"
    body = b"\x02" + bytes([len(name) + 1]) + name + b"\x02" + struct.pack(">i", 0) + b"\x00\x00\x00"
    with socket.create_connection((host, port), 5.0) as asked:
        asked.sendall(struct.pack(">i", len(head + body)) + head + body)
        with asked.makefile("rb") as stream:
            answer = stream.read(struct.unpack(">i", stream.read(4))[0])
    at = 4 + 1 + 2 + 1 + 1 + len(name) + 1 + 4 + 2  # after ids, errors, and the one topic's and partition's heads
    return int(struct.unpack_from(">i", answer, at)[0])


def machines_of(log: LogKind, embedded: bool) -> tuple[str, ...]:
    """The names of a lab's machines: brokers only where the log is on Kafka, databases unless there is none."""
    return (*REPLICAS, *(BROKERS if log == "kafka" else ()), *(() if embedded else DATABASES), BALANCER)
