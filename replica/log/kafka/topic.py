"""Asks the brokers about the topics of a log, and creates them as their contract requires (contract.py)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace

import structlog
from confluent_kafka import KafkaException, Node, TopicCollection
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    DescribeClusterResult,
    NewTopic,
    OffsetSpec,
    ResourceType,
    TopicDescription,
)

from replica.log.admin import LogSurvey, Stretch
from replica.log.kafka.brokers import LOOK_AGAIN_S, Brokers
from replica.log.kafka.contract import (
    REPLICATION_FACTOR,
    LogTopics,
    TopicFacts,
    all_violations,
    corrections,
    losses,
    refuse_unsafe,
    topic_config,
)
from replica.log.kafka.librdkafka import (
    PARTITION,
    TopicHidden,
    TopicMissing,
    client_config,
    connect,
    error_in,
    meaning_of,
)
from replica.log.kafka.pointers import payload_topic
from replica.log.kafka.settings import KafkaSettings
from replica.log.kafka.stretch import read_stretch
from replica.notary.errors import LogRefused, LogUnavailable

log = structlog.get_logger()


async def create_topic(settings: KafkaSettings) -> str:
    """Create the topics as their contract requires, or keep existing ones; return the id of the log's.

    Raises LogRefused (TOPIC_UNSAFE) when an existing topic breaks the contract, and LogUnavailable, also when there
    are fewer brokers than copies.
    """
    admin = TopicAdmin(settings)
    try:
        return await admin.create()
    finally:
        await admin.close()


async def repair_topic(settings: KafkaSettings) -> dict[str, dict[str, str]]:
    """See `TopicAdmin.repair`. Raises LogMissing as well."""
    admin = TopicAdmin(settings)
    try:
        return await admin.repair()
    finally:
        await admin.close()


async def change_topic(settings: KafkaSettings, changes: Mapping[str, str]) -> None:
    """Change settings of the log's topic. Raises LogUnavailable."""
    admin = TopicAdmin(settings)
    try:
        await admin.change(settings.topic, changes)
    finally:
        await admin.close()


def has_payload_topic(settings: KafkaSettings) -> bool:
    """Whether the log has a topic of payloads, as far as we may see it. Blocks: for jobs. Raises LogUnavailable."""
    client = connect(AdminClient, client_config(settings))
    try:
        name = payload_topic(settings.topic)
        return client.list_topics(name, timeout=settings.answer_max_s).topics[name].error is None
    except KafkaException as exception:
        raise meaning_of(error_in(exception), f"looking for topic {name}") from None


class TopicAdmin(Brokers):
    """Asks the brokers about the topics of one log, and creates and mends them."""

    def __init__(self, settings: KafkaSettings) -> None:
        super().__init__(settings)
        self._topic, self._payload_topic = settings.topic, payload_topic(settings.topic)

    async def topic_id(self) -> str:
        """The identity of the log's topic."""
        return str((await self._describe(self._topic)).topic_id)

    async def facts(self, topic: str | None = None) -> TopicFacts:
        """Every fact that the contract covers of one topic: the log's, unless another is named."""
        topic = self._topic if topic is None else topic
        described = await self._describe(topic)
        entries = await self._config(ConfigResource(ResourceType.TOPIC, topic))
        copies = [len(partition.replicas) for partition in described.partitions]
        settings = {name: str(entry.value) for name, entry in entries.items()}
        return TopicFacts(str(described.topic_id), len(copies), min(copies, default=0), settings)

    async def topics(self) -> LogTopics:
        """The facts of the log's topic and of that of its payloads, and where each partition begins."""
        log, first = await self.facts(), await self.first_offset()
        payloads = await self._payload_facts()
        count = 0 if payloads is None else payloads.partitions
        begin = await asyncio.gather(*(self._first_of(self._payload_topic, partition) for partition in range(count)))
        return LogTopics(log, first, payloads, begin)

    async def survey(self) -> LogSurvey:
        """The contract of the log's topics, the log's ends, and whether the brokers delete topics."""
        found = await self.topics()
        only_payloads = replace(found, first_offset=0)  # whoever asks judges the log's own beginning
        deletable, appears = await self._brokers_allow("delete.topic.enable", "auto.create.topics.enable")
        return LogSurvey(
            log_id=found.log.topic_id,
            first_offset=found.first_offset,
            end_offset=await self.end_offset(),
            violations=[*all_violations(found, self._settings), *losses(only_payloads, self._settings)],
            deletable=deletable,
            appears=appears,
        )

    async def server_count(self) -> int:
        """How many brokers the cluster has."""
        return len(await self._brokers())

    async def _brokers_allow(self, *names: str) -> list[bool | None]:
        """For each of these settings whether it is true on some broker; None where the brokers do not say."""
        try:
            brokers = [ConfigResource(ResourceType.BROKER, str(node.id)) for node in await self._brokers()]
            found = await asyncio.gather(*(self._config(broker) for broker in brokers))
        except (LogUnavailable, LogRefused):
            return [None for _ in names]
        return [any(str(each[name].value) == "true" for each in found if name in each) for name in names]

    async def first_offset(self) -> int:
        """The oldest offset that the log's topic still has."""
        return await self._first_of(self._topic, PARTITION)

    async def end_offset(self) -> int:
        """The offset that the next record will get."""
        return await self.end_of(self._topic, PARTITION)

    async def end_and_term(self) -> tuple[int, int]:
        """The offset that the next record will get, and the leader's epoch, which counts the log's leaders."""
        found = await self.offset(self._topic, PARTITION, OffsetSpec.latest())  # type: ignore[no-untyped-call]
        return found.offset, -1 if found.leader_epoch is None else found.leader_epoch

    async def create(self) -> str:
        """Create the log's topic, and that of its payloads if they are to be written, or keep existing ones.

        Returns the id of the log's topic. Raises LogRefused (TOPIC_UNSAFE) when an existing one breaks the contract.
        """
        await self._ensure_exists(self._topic, 1)
        if self._settings.payload_partitions:
            await self._ensure_exists(self._payload_topic, self._settings.payload_partitions)
        found = await self._topics_once_heard_of()
        refuse_unsafe(found, self._settings)
        return found.log.topic_id

    async def repair(self) -> dict[str, dict[str, str]]:
        """Correct the settings by which the log's topics break the contract; returns what was changed, by topic.

        Raises LogRefused (TOPIC_UNSAFE) where no setting corrects them, and LogUnavailable, also without the right.
        """
        found = await self.topics()
        topics = {self._topic: found.log} | ({self._payload_topic: found.payloads} if found.payloads else {})
        wanted = {topic: corrections(facts, self._settings) for topic, facts in topics.items()}
        changed = {topic: changes for topic, changes in wanted.items() if changes}
        for topic, changes in changed.items():
            await self.change(topic, changes)
            await self._wait_until_told(topic, changes)
        refuse_unsafe(await self.topics(), self._settings)
        return changed

    async def change(self, topic: str, changes: Mapping[str, str]) -> None:
        """Change settings of a topic. Raises LogUnavailable, also without the right to."""
        entries = [ConfigEntry(name, to, incremental_operation=AlterConfigOpType.SET) for name, to in changes.items()]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        asked = self.client().incremental_alter_configs([resource], request_timeout=self._settings.answer_max_s)
        await self.answered(asked[resource], f"setting {', '.join(changes)} of topic {topic}")

    async def _wait_until_told(self, topic: str, changes: Mapping[str, str]) -> None:
        """Return once a broker reports the change: each learns of it a moment after the controller has made it."""
        until_s = time.monotonic() + self._settings.answer_max_s
        while not changes.items() <= (await self.facts(topic)).settings.items():
            if time.monotonic() >= until_s:
                raise LogUnavailable(f"topic {topic} was changed, but the brokers do not report it yet")
            await asyncio.sleep(LOOK_AGAIN_S)

    def stretch(self, first: int, end: int) -> Iterator[Stretch]:
        """See `LogAdmin.stretch`: over a consumer of its own."""
        return read_stretch(self._settings, first, end)

    async def _payload_facts(self) -> TopicFacts | None:
        """None: there is no such topic; or, where no payloads are to be written, none that we may see."""
        try:
            return await self.facts(self._payload_topic)
        except TopicMissing:
            return None
        except TopicHidden:
            if self._settings.payload_partitions:
                raise
            return None

    async def _ensure_exists(self, topic: str, partitions: int) -> None:
        """Create the topic unless it exists, and wait until the brokers know it."""
        try:
            await self._describe(topic)
        except TopicMissing:
            single = self._settings.single_broker
            config = topic_config(self._settings)
            new = NewTopic(topic, partitions, 1 if single else REPLICATION_FACTOR, config=config)
            asked = self.client().create_topics([new], operation_timeout=self._settings.answer_max_s)
            await self.answered(asked[topic], f"creating topic {topic}")
            await self._wait_until_known(topic, partitions)
            log.info("topic_created", topic=topic, single_broker=single)

    async def _topics_once_heard_of(self) -> LogTopics:
        """As `topics`. The broker that is asked may hear later of a new topic than the leader that was waited for."""
        until_s = time.monotonic() + self._settings.answer_max_s
        while True:
            try:
                return await self.topics()
            except TopicMissing:
                if time.monotonic() >= until_s:
                    raise
                await asyncio.sleep(LOOK_AGAIN_S)

    async def _describe(self, topic: str) -> TopicDescription:
        def ask(client: AdminClient) -> Future[TopicDescription]:
            return client.describe_topics(TopicCollection([topic]), request_timeout=self._settings.answer_max_s)[topic]

        return await self.read(ask, f"looking for topic {topic}")

    async def _brokers(self) -> list[Node]:
        def ask(client: AdminClient) -> Future[DescribeClusterResult]:
            return client.describe_cluster(request_timeout=self._settings.answer_max_s)

        return (await self.read(ask, "asking the brokers about themselves")).nodes

    async def _config(self, resource: ConfigResource) -> dict[str, ConfigEntry]:
        def ask(client: AdminClient) -> Future[dict[str, ConfigEntry]]:
            return client.describe_configs([resource], request_timeout=self._settings.answer_max_s)[resource]

        return await self.read(ask, f"reading the settings of {resource.restype.name.lower()} {resource.name}")

    async def _first_of(self, topic: str, partition: int) -> int:
        return (await self.offset(topic, partition, OffsetSpec.earliest())).offset  # type: ignore[no-untyped-call]

    async def _wait_until_known(self, topic: str, partitions: int) -> None:
        try:
            async with asyncio.timeout(self._settings.answer_max_s):
                while True:
                    try:
                        # A question to a leader that is not known yet waits long, so its broker is asked for it first.
                        if all(partition.leader for partition in (await self._describe(topic)).partitions):
                            await asyncio.gather(*(self.end_of(topic, partition) for partition in range(partitions)))
                            return
                    except (TopicMissing, LogUnavailable):
                        pass
                    await asyncio.sleep(LOOK_AGAIN_S)
        except TimeoutError:
            raise LogUnavailable(f"topic {topic} was created but has no leader yet") from None
