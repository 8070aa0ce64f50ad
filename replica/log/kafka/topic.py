"""The request log's topic, its contract, and the checks of it. The contract fixes the order and keeps the records.

    setting                         required          because
    partitions                      1                 requests have one order
    replication factor              3 or more         a record outlives the loss of a broker:
    min.insync.replicas             2 or more         no broker acknowledges it alone,
    unclean.leader.election.enable  false             and none that missed it ever leads
    cleanup.policy                  delete            compaction would drop records,
    retention.ms, retention.bytes   -1                and so would age or size
    max.message.bytes               see below         every record that a replica makes fits

The setting `single_broker` allows development on one broker: it relaxes the two counts, and nothing else.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

import structlog
from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    ListOffsetsResultInfo,
    NewTopic,
    OffsetSpec,
    ResourceType,
    TopicDescription,
)

from replica.log.admin import LogSurvey, Stretch
from replica.log.kafka.librdkafka import (
    MESSAGE_MAX_BYTES,
    PARTITION,
    TopicMissing,
    answer,
    client_config,
    connect,
    in_words,
    is_refusal,
    says_nothing,
)
from replica.log.kafka.settings import KafkaSettings
from replica.log.kafka.stretch import read_stretch
from replica.notary.errors import Code, LogRefused, LogUnavailable

log = structlog.get_logger()

REPLICATION_FACTOR = 3
MIN_INSYNC = 2
_LOOK_AGAIN_S = 0.05

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """What the brokers report of a topic. Each creation of a topic makes a new `topic_id` (in Kafka's text form)."""

    topic_id: str
    partitions: int
    replication_factor: int
    settings: Mapping[str, str]


def violations(facts: TopicFacts, single_broker: bool) -> list[str]:
    """Every way in which a topic breaks the contract: setting, found, required. Empty when it keeps the contract."""
    copies, insync = (1, 1) if single_broker else (REPLICATION_FACTOR, MIN_INSYNC)
    contract: list[tuple[str, str, Callable[[str], bool]]] = [
        ("partitions", "1", "1".__eq__),
        ("replication factor", f"{copies} or more", _at_least(copies)),
        ("min.insync.replicas", f"{insync} or more", _at_least(insync)),
        ("unclean.leader.election.enable", "false", "false".__eq__),
        ("cleanup.policy", "delete", "delete".__eq__),
        ("retention.ms", "-1", "-1".__eq__),
        ("retention.bytes", "-1", "-1".__eq__),
        ("max.message.bytes", f"{MESSAGE_MAX_BYTES} or more", _at_least(MESSAGE_MAX_BYTES)),
    ]
    counts = {"partitions": str(facts.partitions), "replication factor": str(facts.replication_factor)}
    found = {**facts.settings, **counts}
    return [
        f"{name} is {found.get(name, 'not known')}, required is {required}"
        for name, required, holds in contract
        if not holds(found.get(name, ""))
    ]


def refuse_unsafe(topic: str, facts: TopicFacts, single_broker: bool) -> None:
    """Raise LogRefused (TOPIC_UNSAFE), which names every violation of the contract, if there is one."""
    if found := violations(facts, single_broker):
        raise LogRefused(f"topic {topic}: {'; '.join(found)}", Code.TOPIC_UNSAFE)


async def create_topic(settings: KafkaSettings) -> str:
    """Create the topic as the contract requires, or keep an existing one; return its id.

    Raises LogRefused (TOPIC_UNSAFE) when an existing topic breaks the contract, and LogUnavailable, also when there
    are fewer brokers than copies.
    """
    admin = TopicAdmin(settings)
    try:
        return await admin.create()
    finally:
        await admin.close()


@dataclass(frozen=True, slots=True)
class View:
    """What one broker reports: its id, the partition's leader (-1: none), and the addresses of all brokers by id."""

    broker: int
    leader: int
    brokers: Mapping[int, str]


def agreed(views: Sequence[View]) -> View:
    """A view whose leader is named by most of all known brokers. Pure.

    Raises LogUnavailable when there is no such leader: brokers are cut off from one another, or from us.
    """
    known = {broker for view in views for broker in (view.broker, *view.brokers)}
    by_broker = {view.broker: view for view in views}
    votes = Counter(view.leader for view in by_broker.values() if view.leader >= 0)
    leader, count = votes.most_common(1)[0] if votes else (-1, 0)
    if 2 * count <= len(known):
        said = ", ".join(f"{view.broker} says {view.leader}" for view in by_broker.values()) or "none answers"
        raise LogUnavailable(f"the brokers do not agree who leads: of {len(known)}, {said}")
    return next(view for view in by_broker.values() if view.leader == leader)


async def agreed_end_offset(settings: KafkaSettings) -> int:
    """The log's end according to the leader that most brokers name. Asks each broker over a connection of its own.

    Raises LogUnavailable.
    """
    first = await asyncio.gather(*(_view(settings, -1, at) for at in settings.bootstrap_servers.split(",")))
    known = {number: address for view in first if view for number, address in view.brokers.items()}
    views: dict[int, View | None] = {}
    while left := known.keys() - views.keys():  # each round asks the brokers that the views before have added
        found = await asyncio.gather(*(_view(settings, number, known[number]) for number in left))
        views |= dict(zip(left, found, strict=True))
        known |= {number: address for view in found if view for number, address in view.brokers.items()}
    view = agreed([view for view in views.values() if view])
    admin = TopicAdmin(_only(settings, known[view.broker]))
    try:
        return await admin.end_offset()
    finally:
        await admin.close()


async def _view(settings: KafkaSettings, broker: int, address: str) -> View | None:
    """What the broker at this address says; None when it does not answer."""
    return await asyncio.to_thread(_ask_view, _only(settings, address), broker)


def _only(settings: KafkaSettings, address: str) -> KafkaSettings:
    return settings.model_copy(update={"bootstrap_servers": address})


def _ask_view(settings: KafkaSettings, broker: int) -> View | None:
    alone = {"enable.sparse.connections": True, "log_level": 0}  # connects only to the broker that it asks
    client = connect(AdminClient, client_config(settings) | alone)
    try:
        found = client.list_topics(settings.topic, timeout=settings.answer_max_s)
    except KafkaException:
        return None
    partition = found.topics[settings.topic].partitions.get(PARTITION)
    brokers = {number: f"{at.host}:{at.port}" for number, at in found.brokers.items()}
    return View(broker, -1 if partition is None else partition.leader, brokers)


class TopicAdmin:
    """Asks the brokers about one topic, without blocking.

    Each question raises TopicMissing, and LogUnavailable when no answer comes within `answer_max_s`. The latter names
    what kept the client from the brokers: a refused log-in, a certificate, an address. The client connects with the
    first question and is kept from then on, because dropping it fails every question in progress.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._topic = settings.topic
        self._kept: AdminClient | None = None
        self._trouble: KafkaError | None = None  # the client's error since the last question

    async def topic_id(self) -> str:
        """The identity of the topic."""
        return str((await self._describe()).topic_id)

    async def facts(self) -> TopicFacts:
        """Every fact that the contract covers."""
        described = await self._describe()
        resource = ConfigResource(ResourceType.TOPIC, self._topic)
        asked = self._client().describe_configs([resource], request_timeout=self._settings.answer_max_s)
        entries = await self._answer(asked[resource], f"reading the settings of topic {self._topic}")
        copies = [len(partition.replicas) for partition in described.partitions]
        settings = {name: str(entry.value) for name, entry in entries.items()}
        return TopicFacts(str(described.topic_id), len(copies), min(copies, default=0), settings)

    async def survey(self) -> LogSurvey:
        """The topic's contract, its ends, and whether the brokers delete topics."""
        facts = await self.facts()
        first, end = await self.first_offset(), await self.end_offset()
        return LogSurvey(
            log_id=facts.topic_id,
            first_offset=first,
            end_offset=end,
            violations=violations(facts, self._settings.single_broker),
            deletable=await self.may_delete_topics(),
        )

    async def server_count(self) -> int:
        """How many brokers the cluster has."""
        asked = self._client().describe_cluster(request_timeout=self._settings.answer_max_s)
        found = await self._answer(asked, "asking the brokers about themselves")
        return len(found.nodes)

    async def may_delete_topics(self) -> bool | None:
        """Whether a broker lets authorised users delete topics; None where the brokers do not say."""
        name = "delete.topic.enable"
        try:
            cluster = await self._answer(self._client().describe_cluster(), "asking the brokers about themselves")
            brokers = [ConfigResource(ResourceType.BROKER, str(node.id)) for node in cluster.nodes]
            asked = self._client().describe_configs(brokers, request_timeout=self._settings.answer_max_s)
            found = [await self._answer(asked[one], f"reading the settings of broker {one.name}") for one in brokers]
        except (LogUnavailable, LogRefused):
            return None
        return any(str(entries[name].value) == "true" for entries in found if name in entries)

    async def first_offset(self) -> int:
        """The oldest offset that the topic still has."""
        return await self._offset(OffsetSpec.earliest())  # type: ignore[no-untyped-call]

    async def end_offset(self) -> int:
        """The offset that the next record will get."""
        return await self._offset(OffsetSpec.latest())  # type: ignore[no-untyped-call]

    async def create(self) -> str:
        """Create the topic as the contract requires, or keep an existing one; return its id.

        Raises LogRefused (TOPIC_UNSAFE) when an existing topic breaks the contract.
        """
        await self._ensure_exists()
        facts = await self.facts()
        refuse_unsafe(self._topic, facts, self._settings.single_broker)
        return facts.topic_id

    def stretch(self, first: int, end: int) -> Iterator[Stretch]:
        """See `LogAdmin.stretch`: over a consumer of its own."""
        return read_stretch(self._settings, first, end)

    async def _ensure_exists(self) -> None:
        """Create the topic unless it exists, and wait until the brokers know it."""
        try:
            await self.topic_id()
        except TopicMissing:
            single = self._settings.single_broker
            new = NewTopic(self._topic, 1, 1 if single else REPLICATION_FACTOR, config=_topic_config(single))
            asked = self._client().create_topics([new], operation_timeout=self._settings.answer_max_s)
            await self._answer(asked[self._topic], f"creating topic {self._topic}")
            await self._wait_until_known()
            log.info("topic_created", topic=self._topic, single_broker=single)

    async def close(self) -> None:
        """Drop the client. May be repeated; the next question makes another client."""
        dropped, self._kept, self._trouble = [self._kept], None, None
        await asyncio.to_thread(dropped.clear)  # waits for the client's own threads

    async def _describe(self) -> TopicDescription:
        names = TopicCollection([self._topic])
        asked = self._client().describe_topics(names, request_timeout=self._settings.answer_max_s)
        return await self._answer(asked[self._topic], f"looking for topic {self._topic}")

    async def _offset(self, spec: OffsetSpec) -> int:
        partition = TopicPartition(self._topic, PARTITION)
        asked = self._client().list_offsets(
            {partition: spec},
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=self._settings.answer_max_s,
        )
        found: ListOffsetsResultInfo = await self._answer(asked[partition], f"reading an offset of topic {self._topic}")
        if found.offset < 0:  # the result when a broker does not answer in time; no error is raised
            raise LogUnavailable(f"reading an offset of topic {self._topic}: the leader did not answer")
        return found.offset

    async def _wait_until_known(self) -> None:
        try:
            async with asyncio.timeout(self._settings.answer_max_s):
                while True:
                    try:
                        await self.end_offset()
                        return
                    except (TopicMissing, LogUnavailable):
                        await asyncio.sleep(_LOOK_AGAIN_S)
        except TimeoutError:
            raise LogUnavailable(f"topic {self._topic} was created but has no leader yet") from None

    async def _answer(self, future: Future[_T], doing: str) -> _T:
        try:
            found = await answer(future, doing, self._settings.answer_max_s)
        except LogUnavailable as error:
            if self._kept is not None:
                self._kept.poll(0)
            if self._trouble is None:
                raise
            raise LogUnavailable(f"{error.detail}; {in_words(self._trouble)}") from None
        self._trouble = None
        return found

    def _client(self) -> AdminClient:
        if self._kept is None:
            quiet = {"error_cb": self._note_trouble, "log_level": 0}  # our exception has what it would log
            self._kept = connect(AdminClient, client_config(self._settings) | quiet)
        self._kept.poll(0)  # processes what the client has reported since the last question
        return self._kept

    def _note_trouble(self, error: KafkaError) -> None:
        """Called by `poll`. A question that fails because of this error only times out: this keeps the cause.

        It is kept until a question is answered: the client does not repeat what it has reported.
        """
        if self._trouble is None or is_refusal(error) or says_nothing(self._trouble):
            self._trouble = error


def _topic_config(single_broker: bool) -> dict[str, str]:
    return {
        "min.insync.replicas": "1" if single_broker else str(MIN_INSYNC),
        "unclean.leader.election.enable": "false",
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "max.message.bytes": str(MESSAGE_MAX_BYTES),
        # A broker refuses records that a client stamps an hour ahead; our clock must not decide what can be logged.
        "message.timestamp.type": "LogAppendTime",
    }


def _at_least(minimum: int) -> Callable[[str], bool]:
    return lambda text: text.isdecimal() and int(text) >= minimum
