"""The request log on a real Kafka broker: the contract suite, the topic contract, and what faults do."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TypeVar

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from structlog.testing import capture_logs

from replica.local.kafka import KafkaBroker, KafkaCluster, start_broker
from replica.local.ports import PortReservation
from replica.local.process import ServerFailed
from replica.log.interface import LogMissing, RequestLog
from replica.log.kafka.agreement import agreed_end_offset
from replica.log.kafka.log import KafkaLog, KafkaWriter
from replica.log.kafka.settings import KafkaSettings
from replica.log.kafka.topic import TopicAdmin, create_topic, has_payload_topic, repair_topic
from replica.log.open import open_log
from replica.notary.codes import Code
from replica.notary.errors import LogRefused, LogUnavailable, NotaryError
from tests.contracts.log_machine import CutLogMachine, LogWorld, log_world, memory_world
from tests.contracts.side_by_side import played
from tests.integration.conftest import MakeTopic
from tests.unit.log.test_contract import LogContract, numbered, read_all
from tests.waiting import eventually

pytestmark = pytest.mark.kafka

T = TypeVar("T")

CLOSE_MAX_S = 0.5  # it takes 1 ms; a busy machine must not fail the test, a wait for the broker must
ADMIN_MAX_S = 10.0
SETTLE_S = 0.3  # for a request that the broker finds on its socket when it goes on
REQUEST_RECORDS_MAX = 10_000  # librdkafka's batch.num.messages
ELECTION_MAX_S = 45.0  # brokers notice a dead one after 9 s


def settings_for(broker: KafkaCluster, topic: str, **changes: object) -> KafkaSettings:
    given = {"bootstrap_servers": broker.bootstrap_servers, "topic": topic, "single_broker": True, **changes}
    return KafkaSettings.model_validate(given)


class KafkaUnderTest:
    """A Kafka topic as the contract suite sees it."""

    def __init__(self, broker: KafkaCluster, topic: str) -> None:
        self._broker = broker
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "message.max.bytes": 1_040_000})

    def log(self) -> RequestLog:
        return open_log(settings_for(self._broker, self._topic))

    async def put(self, *values: bytes | None) -> None:
        for value in values:
            self._producer.produce(self._topic, value, partition=0)
        assert await asyncio.to_thread(self._producer.flush, ADMIN_MAX_S) == 0

    async def cut_off(self, first_offset: int) -> None:
        before = TopicPartition(self._topic, 0, first_offset)
        deleted = self._broker.admin().delete_records([before])
        await asyncio.to_thread(deleted[before].result, ADMIN_MAX_S)

    async def recreate(self) -> None:
        await self._broker.delete_topic(self._topic)
        await create_topic(settings_for(self._broker, self._topic))


class TestKafkaLog(LogContract):
    @pytest.fixture
    def topic_under_test(self, kafka_broker: KafkaCluster, topic: str) -> KafkaUnderTest:
        return KafkaUnderTest(kafka_broker, topic)


@pytest.mark.parametrize("examples", [4, pytest.param(60, marks=pytest.mark.thorough)])
def test_it_answers_as_the_double_does(kafka_broker: KafkaCluster, make_topic: MakeTopic, examples: int) -> None:
    """Goal: see LogMachine. Method: random calls."""

    @asynccontextmanager
    async def world() -> AsyncIterator[LogWorld]:
        topic = await led(kafka_broker, await make_topic())
        async with log_world(KafkaUnderTest(kafka_broker, topic)) as made:
            yield made

    played(partial(CutLogMachine, memory_world, world), examples=examples, steps=100)


async def led(broker: KafkaCluster, topic: str) -> str:
    """Wait until a new topic has its leader, which comes a moment after the creation is answered."""
    admin = TopicAdmin(settings_for(broker, topic))
    await until_available(admin.end_offset)
    await admin.close()
    return topic


@pytest.fixture
async def topic(kafka_broker: KafkaCluster, make_topic: MakeTopic) -> str:
    """One new empty topic."""
    return await led(kafka_broker, await make_topic())


@pytest.fixture
def kafka(kafka_broker: KafkaCluster, topic: str) -> KafkaUnderTest:
    return KafkaUnderTest(kafka_broker, topic)


@asynccontextmanager
async def opened(settings: KafkaSettings) -> AsyncIterator[KafkaLog]:
    log = KafkaLog(settings)
    try:
        yield log
    finally:
        await log.close()


@contextmanager
def frozen(broker: KafkaCluster) -> Iterator[None]:
    """The broker stops, its connections stay open: a client notices only by its own time limits."""
    process = broker.brokers[0].process
    process.signal_group(signal.SIGSTOP)
    try:
        until_s = perf_counter() + ADMIN_MAX_S
        while not _all_stopped(process.pid):  # the signal reaches a thread when it reaches it; some still answer
            assert perf_counter() < until_s, "the broker does not stop"
        yield
    finally:
        process.signal_group(signal.SIGCONT)


# ---- the topic contract ----


async def test_a_created_topic_keeps_the_contract(kafka_broker: KafkaCluster) -> None:
    """Goal: the set-up makes what the start-up wants. Method: create twice, check, look at what check does not see."""
    settings = settings_for(kafka_broker, "created")
    topic_id = await create_topic(settings)
    assert await create_topic(settings) == topic_id
    async with opened(settings) as log:
        assert await log.check() == topic_id
    admin = TopicAdmin(settings)
    facts = await admin.facts()
    assert facts.settings["message.timestamp.type"] == "LogAppendTime"
    assert facts.settings["flush.messages"] == "1"
    await admin.close()


async def test_topics_of_before_are_repaired_and_refused_until_then(kafka_broker: KafkaCluster) -> None:
    """Goal: a release that demands more is reached by one command. Method: topics made for `replicated`; a check for
    `synced`, under both settings of payloads; repair, twice; a broken number of partitions stays refused."""
    before = settings_for(kafka_broker, "before", durability="replicated", payload_partitions=2)
    today = settings_for(kafka_broker, "before", payload_partitions=2)
    await create_topic(before)
    async with opened(today) as log:
        with pytest.raises(LogRefused, match=r"flush\.messages is \d+, required is 1; .*topic before-payloads"):
            await log.check()
        assert len(await log.hazards()) == 2
        assert await repair_topic(today) == {name: {"flush.messages": "1"} for name in ("before", "before-payloads")}
        await log.check()
        assert not await log.hazards()
    assert await repair_topic(today) == {}
    async with opened(before) as log:
        await log.check()  # who asks for less is content with more
    with pytest.raises(LogRefused, match="partitions is 2, required is 3 or more"):
        await repair_topic(settings_for(kafka_broker, "before", payload_partitions=3))


async def test_three_brokers_are_wanted_unless_one_is_allowed_loudly(kafka_broker: KafkaCluster, topic: str) -> None:
    """Goal: one broker is a choice that nobody overlooks. Method: check with and without the setting."""
    with capture_logs() as logged:
        async with opened(settings_for(kafka_broker, topic)) as log:
            await log.check()
    assert [(entry["event"], entry["log_level"]) for entry in logged] == [("single_broker_log", "warning")]
    with capture_logs() as logged:
        async with opened(settings_for(kafka_broker, topic, single_broker=False)) as log:
            with pytest.raises(LogRefused) as refused:
                await log.check()
    assert logged == []
    assert refused.value.code is Code.TOPIC_UNSAFE
    assert "replication factor is 1, required is 3" in refused.value.detail
    assert "min.insync.replicas is 1, required is 2" in refused.value.detail


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retention.ms", "604800000"),
        ("retention.bytes", "1000000"),
        ("cleanup.policy", "compact"),
        ("unclean.leader.election.enable", "true"),
        ("max.message.bytes", "100000"),
    ],
)
async def test_a_topic_that_was_changed_is_refused(
    kafka_broker: KafkaCluster, topic: str, name: str, value: str
) -> None:
    """Goal: what the broker reports is what is judged. Method: change one setting of a good topic on the broker."""
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    changed = kafka_broker.admin().incremental_alter_configs([resource])
    await asyncio.to_thread(changed[resource].result, ADMIN_MAX_S)
    async with opened(settings_for(kafka_broker, topic)) as log:
        with pytest.raises(LogRefused, match=f"{name} is {value}") as refused:
            await log.check()
    assert refused.value.code is Code.TOPIC_UNSAFE


async def test_more_than_one_partition_is_refused(kafka_broker: KafkaCluster, make_topic: MakeTopic) -> None:
    """Goal: order is one order. Method: a topic with two partitions."""
    async with opened(settings_for(kafka_broker, await make_topic(partitions=2))) as log:
        with pytest.raises(LogRefused, match="partitions is 2, required is 1"):
            await log.check()


async def test_a_missing_topic_is_refused_and_not_created(kafka_broker: KafkaCluster) -> None:
    """Goal: a mistyped name is no empty log. Method: ask everything of a topic that nobody made."""
    async with opened(settings_for(kafka_broker, "mistyped")) as log:
        for call in (log.check, log.end_offset, log.open_writer, lambda: log.open_reader(0)):
            with pytest.raises(LogRefused, match="mistyped") as refused:
                await call()
            assert refused.value.code is Code.LOG_MISSING
            assert "must be restored" in refused.value.detail


# ---- faults ----


async def test_a_reader_refuses_when_its_offset_is_gone(kafka: KafkaUnderTest) -> None:
    """Goal: a topic that shrank under a reader is refused, for good. Method: recreate it shorter under the reader."""
    log = kafka.log()
    await kafka.put(*numbered(10))
    reader = await log.open_reader(0)
    await read_all(reader, 10)
    await kafka.recreate()
    await kafka.put(b"another history")
    for _ in range(2):
        with pytest.raises(LogRefused):
            await reader.read(1, ADMIN_MAX_S)
    await log.close()


async def test_records_that_are_missing_are_refused(
    kafka: KafkaUnderTest, kafka_broker: KafkaCluster, topic: str
) -> None:
    """Goal: a gap never passes for order. Method: a transaction of somebody else's, whose marker takes an offset."""
    stranger = Producer({"bootstrap.servers": kafka_broker.bootstrap_servers, "transactional.id": "stranger"})
    await asyncio.to_thread(stranger.init_transactions, ADMIN_MAX_S)
    stranger.begin_transaction()
    stranger.produce(topic, b"0", partition=0)
    await asyncio.to_thread(stranger.commit_transaction, ADMIN_MAX_S)
    log = kafka.log()
    async with asyncio.timeout(ADMIN_MAX_S):
        while await log.end_offset() < 2:  # the marker is written a little after the commit
            await asyncio.sleep(0.01)
    await kafka.put(b"2")
    reader = await log.open_reader(0)
    assert await read_all(reader, 1) == [(0, b"0")]
    with pytest.raises(LogRefused, match="goes on at offset 2, but 1 is next"):
        await reader.read(1, ADMIN_MAX_S)
    await log.close()


async def test_a_flipped_bit_in_a_brokers_segment_is_never_read(
    kafka: KafkaUnderTest, kafka_broker: KafkaCluster, topic: str
) -> None:
    """Goal: rot is no other record, and the log ends nowhere else. Method: flip one bit of a value in the file of a
    broker that runs and checks nothing; read what is before, and then that."""
    await kafka.put(b"before")
    await kafka.put(b"rots away")
    (segment,) = kafka_broker.brokers[0].folder.rglob(f"{topic}-0/*.log")
    with segment.open("r+b") as file:
        file.seek(segment.read_bytes().index(b"rots away"))
        file.write(b"R")
    log = kafka.log()
    reader = await log.open_reader(0)
    found: list[tuple[int, bytes]] = []
    with pytest.raises(NotaryError) as refused:
        async with asyncio.timeout(ADMIN_MAX_S):
            while True:
                found += await reader.read(1, 1.0)
                assert found in ([], [(0, b"before")])
    assert "CRC" in refused.value.detail
    await log.close()


async def test_a_frozen_broker_is_unavailable_and_never_an_answer(kafka_broker: KafkaCluster, topic: str) -> None:
    """Goal: no answer is no offset, topic or writer. Method: freeze the broker and ask."""
    async with opened(settings_for(kafka_broker, topic, answer_max_s=1.0, connect_timeout_s=1.0)) as log:
        await log.check()
        with frozen(kafka_broker):
            for call in (log.check, log.end_offset, log.open_writer, lambda: log.open_reader(0)):
                began_s = perf_counter()
                with pytest.raises(LogUnavailable):
                    await call()
                assert perf_counter() - began_s < 4.0
        assert await log.end_offset() == 0


async def test_records_that_nobody_acknowledges_are_counted_and_told(kafka_broker: KafkaCluster, topic: str) -> None:
    """Goal: giving up is visible and bounded. Method: append to a frozen broker, wait for the time limit."""
    with capture_logs() as logged:
        async with opened(settings_for(kafka_broker, topic, append_timeout_s=0.5)) as log:
            writer = await log.open_writer()
            with frozen(kafka_broker):
                for value in numbered(5):
                    writer.append(value)
                writer.append_all(numbered(5, start=5))
                await eventually(lambda: _is(writer.failed_count == 10))
    told = [entry for entry in logged if entry["event"] == "log_append_failed"]
    assert sum(entry["count"] for entry in told) == 10
    assert "_MSG_TIMED_OUT" in told[0]["detail"]


async def nothing_queued(writer: KafkaWriter) -> bool:
    return not len(writer._producer)


async def test_the_queue_is_bounded(kafka_broker: KafkaCluster, topic: str) -> None:
    """Goal: a log that takes nothing cannot fill the memory. Method: append far past the bound, then while frozen."""
    async with opened(settings_for(kafka_broker, topic, append_queue_max=100)) as log:
        writer, reader = await log.open_writer(), await log.open_reader(0)
        for start in range(0, 800, 80):  # what was acknowledged makes room
            for value in numbered(40, start):
                writer.append(value)
            writer.append_all(numbered(40, start + 40))
            await read_all(reader, 80)
            await eventually(partial(nothing_queued, writer))  # a record can be read back before its report arrives
        with frozen(kafka_broker):
            accepted_count = 0
            with pytest.raises(LogUnavailable, match="full"):
                for value in numbered(101):
                    writer.append(value)
                    accepted_count += 1
            # A record can be read back before its writer gets the report; such a one still has its place.
            assert 60 <= accepted_count <= 100
            with pytest.raises(LogUnavailable, match="full"):
                writer.append_all(numbered(2))


async def test_closing_is_prompt_and_purges_while_the_broker_is_frozen(kafka_broker: KafkaCluster, topic: str) -> None:
    """Goal: a step-down never waits for Kafka. Method: close reader, writer and log under a frozen broker."""
    log = KafkaLog(settings_for(kafka_broker, topic))
    writer, reader = await log.open_writer(), await log.open_reader(0)
    writer.append(b"acknowledged")
    await read_all(reader, 1)
    with frozen(kafka_broker):
        for value in numbered(3 * REQUEST_RECORDS_MAX):
            writer.append(value)
        waiting = asyncio.create_task(reader.read(1, 60.0))
        await asyncio.sleep(0.05)
        for close in (writer.close, reader.close, log.close):
            began_s = perf_counter()
            await close()
            assert perf_counter() - began_s < CLOSE_MAX_S
        with pytest.raises(LogUnavailable, match="closed"):
            await waiting
    assert writer.failed_count == 0  # purged, not given up
    async with opened(settings_for(kafka_broker, topic)) as later:
        # What was on the wire may arrive, and that is one request at most: the rest was purged.
        assert await until_available(later.end_offset) <= 1 + REQUEST_RECORDS_MAX
        await asyncio.sleep(SETTLE_S)
        assert await later.end_offset() <= 1 + REQUEST_RECORDS_MAX


@pytest.mark.thorough
async def test_a_broker_that_ends_is_unavailable_and_comes_back(kafka_broker: KafkaCluster, topic: str) -> None:
    """Goal: a reader reports that the log is out of reach; a new one goes on. Method: stop the broker and start it."""
    async with opened(settings_for(kafka_broker, topic)) as log:
        writer, reader = await log.open_writer(), await log.open_reader(0)
        writer.append(b"before")
        await read_all(reader, 1)
        try:
            await kafka_broker.stop()
            for _ in range(2):
                with pytest.raises(LogUnavailable):
                    await reader.read(1, ADMIN_MAX_S)
            for close in (reader.close, writer.close):
                began_s = perf_counter()
                await close()
                assert perf_counter() - began_s < CLOSE_MAX_S
        finally:
            await kafka_broker.start()
        reader, writer = await until_available(lambda: log.open_reader(0)), await until_available(log.open_writer)
        writer.append(b"after")
        assert await read_all(reader, 2) == [(0, b"before"), (1, b"after")]


@pytest.mark.slow
async def test_three_brokers_survive_the_loss_of_the_leader(servers_folder: Path, ports: PortReservation) -> None:
    """Goal: reader and writer go on with the next leaders by themselves, also of payloads. Method: kill the leader
    under appends; each broker leads a partition of payloads as well, and every other record is a large request."""
    cluster = await start_broker(servers_folder / "kafka-three", ports, size=3)
    settings = settings_for(cluster, "three", single_broker=False, append_timeout_s=60.0, payload_partitions=3)
    after = [*numbered(10, start=10), *(b"\x9d\x01\x02" + bytes([number]) * 9_000 for number in range(9))]
    try:
        topic_id = await create_topic(settings)
        async with opened(settings) as log:
            assert await log.check() == topic_id
            writer, reader = await log.open_writer(), await log.open_reader(0)
            for value in numbered(10):
                writer.append(value)
            await read_all(reader, 10)
            metadata = await asyncio.to_thread(cluster.admin().list_topics, "three", timeout=ADMIN_MAX_S)
            leader = metadata.topics["three"].partitions[0].leader
            metadata = await asyncio.to_thread(cluster.admin().list_topics, "three-payloads", timeout=ADMIN_MAX_S)
            assert leader in [one.leader for one in metadata.topics["three-payloads"].partitions.values()]
            await cluster.brokers[leader - 1].process.kill()
            for value in after:
                writer.append(value)
            values: set[bytes] = set()
            async with asyncio.timeout(ELECTION_MAX_S):
                while not values.issuperset(after):  # a retried record may be there twice
                    values.update(value for _, value in await reader.read(500, 1.0))
            assert writer.failed_count == 0
            assert await until_available(log.check, ELECTION_MAX_S) == topic_id  # a dead controller is found out later
    finally:
        await cluster.remove()


def _all_stopped(pid: int) -> bool:
    states = [path.read_text().rsplit(")", 1)[1].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    return set(states) == {"T"}


async def until_available(call: Callable[[], Awaitable[T]], max_s: float = ADMIN_MAX_S) -> T:
    """The answer, once the log gives one; a broker that has just started may refuse for a moment."""
    async with asyncio.timeout(max_s):
        while True:
            try:
                return await call()
            except LogUnavailable:
                await asyncio.sleep(0.05)


async def _is(condition: bool) -> bool:
    return condition


async def test_the_writers_round_trips_are_known_while_it_is_open(
    kafka_broker: KafkaCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a slow broker is seen on /metrics. Method: real statistics of a real client, asked for more often."""
    monkeypatch.setattr("replica.log.kafka.log.STATISTICS_EVERY_S", 0.1)
    async with opened(settings_for(kafka_broker, topic)) as log:
        writer = await log.open_writer()
        writer.append(b"one")

        async def is_known() -> bool:
            return bool(log.round_trips.by_broker)

        await eventually(is_known, ADMIN_MAX_S)
        (found,) = log.round_trips.by_broker.values()
        assert min(found.mean_s, found.p99_s) > 0
        await writer.close()
        assert log.round_trips.by_broker == {}


@pytest.mark.thorough
async def test_a_topic_is_deleted_only_where_the_brokers_were_told_to(
    servers_folder: Path, ports: PortReservation, kafka_broker: KafkaCluster, topic: str
) -> None:
    """Goal: no slip of the hand takes the log, and the doctor knows. Method: a broker of each kind; delete on both,
    and on the second one once it was started again on purpose."""
    admin = TopicAdmin(settings_for(kafka_broker, topic))
    assert (await admin.survey()).deletable is True
    await admin.close()
    cluster = await start_broker(servers_folder / "kafka-kept", ports)
    try:
        await create_topic(settings := settings_for(cluster, "kept"))
        admin = TopicAdmin(settings)
        assert (await admin.survey()).deletable is False
        await admin.close()
        with pytest.raises(ServerFailed, match="TOPIC_DELETION_DISABLED"):
            await cluster.delete_topic("kept")
        await cluster.stop()
        cluster.allow_deletion()
        await cluster.start()
        await cluster.delete_topic("kept")
    finally:
        await cluster.remove()


async def test_no_client_of_ours_creates_a_topic_by_asking(
    servers_folder: Path, ports: PortReservation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: on brokers with Kafka's default, only `create` makes topics, and the doctor names the setting.

    Method: such a broker; look for the payloads of a log that has none, ask brokers for a missing log's end, read it
    and write to it, with every kind of client.
    """
    as_ours = KafkaBroker.properties
    monkeypatch.setattr(
        KafkaBroker,
        "properties",
        lambda *given: as_ours(*given).replace("auto.create.topics.enable=false", "auto.create.topics.enable=true"),
    )
    cluster = await start_broker(servers_folder / "kafka-defaults", ports)
    try:
        await create_topic(settings := settings_for(cluster, "made"))
        assert not has_payload_topic(settings)
        missing = settings_for(cluster, "missing")
        with pytest.raises(NotaryError):
            await agreed_end_offset(missing)
        admin = TopicAdmin(missing)
        with pytest.raises(LogMissing):
            await admin.survey()
        await admin.close()
        log = KafkaLog(missing)
        with pytest.raises(NotaryError):
            await log.check()
        with pytest.raises(NotaryError):
            await log.open_writer()
        with pytest.raises(NotaryError):
            await log.open_reader(0)
        await log.close()
        admin = TopicAdmin(settings)
        assert (await admin.survey()).appears is True
        await admin.close()
        names = await asyncio.to_thread(cluster.admin().list_topics, timeout=5)
        assert [name for name in names.topics if not name.startswith("__")] == ["made"]
    finally:
        await cluster.remove()
