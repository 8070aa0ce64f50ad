"""Apache Kafka brokers of our own on loopback (KRaft), and topics that keep the request log's contract."""

from __future__ import annotations

import asyncio
import os
import shutil
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from replica.local.machine import THIS_MACHINE, Machine
from replica.local.ports import PortReservation
from replica.local.process import Command, ManagedProcess, ServerFailed, SoftwareMissing, run_to_end, until

FORMAT_MAX_S = 60.0
READY_MAX_S = 90.0
ANSWER_MAX_S = 10.0
STOP_GRACE_S = 20.0
# How long brokers wait for one that is gone, before the log goes on without it: docs/reference-deployment.md.
DETECTION = {
    "broker.heartbeat.interval.ms": 250,
    "broker.session.timeout.ms": 1_500,
    "replica.lag.time.max.ms": 1_500,
    "controller.quorum.fetch.timeout.ms": 800,
    "controller.quorum.election.timeout.ms": 400,
    "controller.quorum.election.backoff.max.ms": 200,
}
TCP_PROBE_MAX_S = 1.0
JAVA_OPTIONS = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true")
LOG_OPTIONS = (
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSS",
    "-Dorg.slf4j.simpleLogger.showThreadName=false",
)


class KafkaBroker:
    """One broker, which is a controller as well. Made by KafkaCluster; use it for faults on purpose."""

    def __init__(
        self,
        node_id: int,
        folder: Path,
        port: int,
        controller_port: int,
        libs: Path,
        *,
        machine: Machine = THIS_MACHINE,
    ) -> None:
        self.node_id = node_id
        self.machine = machine
        self.folder = folder
        self.port = port
        self.controller_port = controller_port
        self.topics_deletable = False  # written into its settings by the next `format`
        self._libs = libs
        self.process = ManagedProcess(self._command(f"kafka-{node_id}", "kafka.Kafka", str(self._properties_path)))

    async def format(self, cluster_id: str, voters: str, cluster_size: int) -> None:
        """Write the settings, and the storage's format unless the folder has one already."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._properties_path.write_text(self.properties(voters, cluster_size))
        if (self.folder / "data" / "meta.properties").exists():
            return
        argv = ["kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(self._properties_path)]
        await run_to_end(self._command(f"kafka-{self.node_id} format", *argv), FORMAT_MAX_S)

    async def listens(self) -> bool:
        """True once the broker's port accepts a connection."""
        try:
            async with asyncio.timeout(TCP_PROBE_MAX_S):
                _, writer = await asyncio.open_connection(self.machine.address, self.port)
        except (OSError, TimeoutError):
            return False
        writer.close()
        return True

    @property
    def _properties_path(self) -> Path:
        return self.folder / "server.properties"

    def _command(self, name: str, *main: str) -> Command:
        argv = [str(find_java()), *JAVA_OPTIONS, *LOG_OPTIONS, "-cp", f"{self._libs}/*", *main]
        return Command(name=name, argv=argv, log_path=self.folder / "kafka.log", enter=self.machine.enter)

    def properties(self, voters: str, cluster_size: int) -> str:
        """The broker's settings file: durable for the number of brokers that there are, and small."""
        copies = min(3, cluster_size)
        in_sync = max(1, copies - 1)
        address = self.machine.address
        listener = f"PLAINTEXT://{address}:{self.port}"
        settings = {
            "process.roles": "broker,controller",
            "node.id": self.node_id,
            "controller.quorum.voters": voters,
            "controller.listener.names": "CONTROLLER",
            "listeners": f"{listener},CONTROLLER://{address}:{self.controller_port}",
            "advertised.listeners": listener,
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": self.folder / "data",
            # A topic that appears by itself would have none of the contract's settings.
            "auto.create.topics.enable": "false",
            "unclean.leader.election.enable": "false",
            # The topic is the notary's memory: to delete it takes a change of settings and a restart, on purpose.
            "delete.topic.enable": str(self.topics_deletable).lower(),
            "default.replication.factor": copies,
            "min.insync.replicas": in_sync,
            "offsets.topic.replication.factor": copies,
            "offsets.topic.num.partitions": 1,
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": in_sync,
            "transaction.state.log.num.partitions": 1,
            "share.coordinator.state.topic.replication.factor": copies,
            "share.coordinator.state.topic.min.isr": in_sync,
            "group.initial.rebalance.delay.ms": 0,
            "log.cleaner.dedupe.buffer.size": 8 * 1024 * 1024,  # nothing of ours is compacted; the default is 128 MB
        } | (DETECTION if cluster_size > 1 else {})
        return "".join(f"{name}={value}\n" for name, value in settings.items())


class KafkaCluster:
    """`size` brokers in `folder`, started together; an existing folder is started again with what it holds.

    The ports of the brokers and their controllers are `2 * size` numbers, brokers first. A restart must be given the
    same controllers' ports only while other brokers of the cluster run.
    """

    def __init__(
        self, folder: Path, ports: list[int], libs: Path | None = None, machines: Sequence[Machine] | None = None
    ) -> None:
        size = len(ports) // 2
        if size < 1 or len(ports) != 2 * size:
            raise ServerFailed(f"{len(ports)} ports for Kafka: each broker needs two")
        self.folder = folder.absolute()
        jars = find_libs() if libs is None else libs
        places = [THIS_MACHINE] * size if machines is None else machines
        self.brokers = [
            KafkaBroker(
                node, self.folder / f"broker-{node}", ports[node - 1], ports[size + node - 1], jars, machine=place
            )
            for node, place in enumerate(places, start=1)
        ]
        self._admin: AdminClient | None = None

    @property
    def bootstrap_servers(self) -> str:
        """What a client is configured with: `host:port`, comma-separated."""
        return ",".join(f"{broker.machine.address}:{broker.port}" for broker in self.brokers)

    def allow_deletion(self, allowed: bool = True) -> None:
        """Set whether topics may be deleted, from the brokers' next start on. By default they may not."""
        for broker in self.brokers:
            broker.topics_deletable = allowed

    async def start(self) -> None:
        """Format new storage, start the brokers, wait until all of them are known. Raises ServerFailed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        cluster_id, size = self._cluster_id(), len(self.brokers)
        voters = ",".join(
            f"{broker.node_id}@{broker.machine.address}:{broker.controller_port}" for broker in self.brokers
        )
        for broker in self.brokers:
            await broker.format(cluster_id, voters, size)
        for broker in self.brokers:
            broker.process.start()
        for broker in self.brokers:
            await broker.process.wait_ready(broker.listens, READY_MAX_S)
        await self.brokers[0].process.wait_ready(self._all_known, READY_MAX_S)

    async def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """Ask all brokers to end, together, because the last controllers cannot leave a quorum in good order."""
        self._admin = None
        await asyncio.gather(*(broker.process.stop(grace_s) for broker in self.brokers))

    async def remove(self) -> None:
        """Stop the brokers at once and delete everything they kept."""
        await self.stop(grace_s=0)
        shutil.rmtree(self.folder, ignore_errors=True)

    async def create_topic(
        self, name: str, *, partitions: int = 1, replication_factor: int | None = None, min_insync: int | None = None
    ) -> None:
        """Create a topic with the request log's contract: kept for ever, nothing compacted, no unclean leader.

        Copies default to three, or as many as there are brokers; in-sync copies to one less, at least one.
        Raises ServerFailed, also when the topic exists.
        """
        copies = replication_factor or min(3, len(self.brokers))
        config = {
            "cleanup.policy": "delete",
            "retention.ms": "-1",
            "retention.bytes": "-1",
            "min.insync.replicas": str(min_insync or max(1, copies - 1)),
            "unclean.leader.election.enable": "false",
            "flush.messages": "1",
        }
        topic = NewTopic(name, num_partitions=partitions, replication_factor=copies, config=config)
        future = self.admin().create_topics([topic], operation_timeout=ANSWER_MAX_S)[name]
        try:
            await asyncio.to_thread(future.result, ANSWER_MAX_S)
            async with asyncio.timeout(ANSWER_MAX_S):
                await until(lambda: self._has_leaders(name, partitions))
        except (KafkaException, TimeoutError) as error:
            raise ServerFailed(f"topic {name} was not created: {error!r}") from error

    async def set_topic_config(self, name: str, config: Mapping[str, str]) -> None:
        """Change settings of a topic, also to what breaks the contract, for tests. Raises ServerFailed."""
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in config.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
        (future,) = self.admin().incremental_alter_configs([resource]).values()
        try:
            await asyncio.to_thread(future.result, ANSWER_MAX_S)
        except KafkaException as error:
            raise ServerFailed(f"topic {name} was not changed: {error!r}") from error

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with all its records; see `allow_deletion`. Raises ServerFailed."""
        future = self.admin().delete_topics([name], operation_timeout=ANSWER_MAX_S)[name]
        try:
            await asyncio.to_thread(future.result, ANSWER_MAX_S)
        except KafkaException as error:
            raise ServerFailed(f"topic {name} was not deleted: {error!r}") from error

    def admin(self) -> AdminClient:
        """An administration client, kept until `stop`: dropping one fails the calls still under way."""
        if self._admin is None:
            self._admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 2})  # not each retry
        return self._admin

    async def _all_known(self) -> bool:
        try:
            metadata = await asyncio.to_thread(self.admin().list_topics, timeout=ANSWER_MAX_S)
        except KafkaException:
            return False
        return len(metadata.brokers) == len(self.brokers)

    async def _has_leaders(self, topic: str, partitions: int) -> bool:
        """True once clients see the topic: brokers learn of it a moment after the controller has created it."""
        metadata = await asyncio.to_thread(self.admin().list_topics, topic, timeout=ANSWER_MAX_S)
        found = metadata.topics[topic].partitions.values()
        return len(found) == partitions and all(partition.leader >= 0 for partition in found)

    def _cluster_id(self) -> str:
        path = self.folder / "cluster.id"
        if not path.exists():
            encoded = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
            path.write_text(encoded.replace("-", "_"))  # a leading dash would be taken for an option
        return path.read_text()


async def start_broker(
    folder: Path, ports: PortReservation, size: int = 1, *, topics_deletable: bool = False
) -> KafkaCluster:
    """A started cluster of `size` brokers on ports of this reservation."""
    cluster = KafkaCluster(folder, [ports.take() for _ in range(2 * size)])
    cluster.allow_deletion(topics_deletable)
    await cluster.start()
    return cluster


def find_libs() -> Path:
    """The folder with the broker's jars: $NOTARY_KAFKA_LIBS, else .tools/kafka/libs. Raises SoftwareMissing."""
    configured = os.environ.get("NOTARY_KAFKA_LIBS")
    libs = Path(configured) if configured else Path(__file__).parents[2] / ".tools" / "kafka" / "libs"
    if not any(libs.glob("kafka_*.jar")):
        raise SoftwareMissing(f"no Kafka broker in {libs}; NOTARY_KAFKA_LIBS may name another folder of its jars")
    return libs


def find_java() -> Path:
    """The Java runtime: under $JAVA_HOME, else on the path. Raises SoftwareMissing."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin" if home else None) or shutil.which("java")
    if found is None:
        raise SoftwareMissing("no Java runtime; Debian's package is `default-jre-headless`")
    return Path(found)
