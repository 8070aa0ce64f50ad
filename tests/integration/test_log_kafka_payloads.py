"""A log on a real broker with pointers to payloads in a second topic: what readers return, wait for and refuse; and
what the writer writes there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from time import monotonic
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from replica.local.kafka import KafkaCluster
from replica.log.interface import LogRecords, RequestLog
from replica.log.kafka import payloads
from replica.log.kafka.log import SERVE_EVERY_S, KafkaLog, KafkaWriter
from replica.log.kafka.pointers import payload_topic, pointer_in, pointer_to
from replica.log.kafka.settings import KafkaSettings
from replica.log.kafka.stretch import read_stretch
from replica.log.kafka.topic import TopicAdmin, create_topic
from replica.notary.codes import Code
from replica.notary.errors import LogRefused, LogUnavailable
from tests.integration.conftest import MakeTopic
from tests.integration.test_log_kafka import KafkaUnderTest, frozen
from tests.unit.log.test_contract import LogContract
from tests.waiting import eventually

pytestmark = pytest.mark.kafka

WAIT_S = 10.0
PARTITIONS = 2


def request(number: int, size: int = 5_000) -> bytes:
    """What begins as a request of format 2: the log looks no further."""
    return b"\x9d\x01\x02" + number.to_bytes(8) + bytes(size)


class SplitTopic:
    """A log's topic and its topic of payloads, written as a writer of pointers would."""

    def __init__(self, broker: KafkaCluster, topic: str) -> None:
        self._broker = broker
        self._producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 1})
        given = {"bootstrap_servers": broker.bootstrap_servers, "topic": topic, "single_broker": True}
        self.settings = KafkaSettings.model_validate(given | {"read_ahead_mib": 2})
        self.ends = [0] * PARTITIONS

    async def payload(self, partition: int, *values: bytes) -> None:
        await self._put(payload_topic(self.settings.topic), partition, *values)
        self.ends[partition] += len(values)

    async def log(self, *values: bytes) -> None:
        await self._put(self.settings.topic, 0, *values)

    async def cut_off_payloads(self, partition: int, first_offset: int) -> None:
        before = TopicPartition(payload_topic(self.settings.topic), partition, first_offset)
        await asyncio.to_thread(self._broker.admin().delete_records([before])[before].result, WAIT_S)

    async def _put(self, topic: str, partition: int, *values: bytes) -> None:
        for value in values:
            self._producer.produce(topic, value, partition=partition)
        assert await asyncio.to_thread(self._producer.flush, WAIT_S) == 0


@pytest.fixture
async def split(kafka_broker: KafkaCluster, make_topic: MakeTopic) -> SplitTopic:
    topic = await make_topic()
    await kafka_broker.create_topic(payload_topic(topic), partitions=PARTITIONS)
    return SplitTopic(kafka_broker, topic)


@pytest.fixture
async def log(split: SplitTopic) -> AsyncIterator[RequestLog]:
    opened = KafkaLog(split.settings)
    yield opened
    await opened.close()


async def refused_as_missing(log: RequestLog, detail: str) -> None:
    """Read the first record until that is refused."""
    reader = await log.open_reader(0)
    with pytest.raises(LogRefused, match=detail) as refused:
        async with asyncio.timeout(WAIT_S):
            while not await reader.read(1, 0.2):
                pass
    assert refused.value.code is Code.LOG_PAYLOAD_MISSING
    await reader.close()


async def read(log: RequestLog, count: int, first: int = 0) -> LogRecords:
    reader = await log.open_reader(first)
    found: list[tuple[int, bytes]] = []
    async with asyncio.timeout(WAIT_S):
        while len(found) < count:
            found += await reader.read(count - len(found), 1.0)
    return found


@pytest.mark.thorough
async def test_records_are_whole_for_replicas_and_jobs(split: SplitTopic, log: RequestLog) -> None:
    """Goal: nobody above the log sees a pointer, wherever it begins. Method: 300 requests, each third one in the log
    itself, payloads without pointers among them, one repeated pointer, more bytes than one batch may have."""
    whole, stored = [], []
    for number in range(300):
        record, partition = request(number, 20_000), number % PARTITIONS
        whole.append(record)
        if number % 3 == 0:
            stored.append(record)
            continue
        stored.append(pointer_to(record, partition, split.ends[partition] + number % 5))
        await split.payload(partition, *[b"orphan"] * (number % 5), record)
    await split.log(*stored, stored[1])
    whole.append(whole[1])
    assert await read(log, 301) == list(enumerate(whole))
    assert await read(log, 51, first=250) == list(enumerate(whole))[250:]
    batches = await asyncio.to_thread(lambda: list(read_stretch(split.settings, 10, 301)))
    assert [value for batch in batches for value in batch.values] == whole[10:]
    assert [batch.first_offset for batch in batches] == [
        10 + sum(len(b.values) for b in batches[:n]) for n in range(len(batches))
    ]


async def test_a_late_payload_is_waited_for_and_holds_back_nothing_before_it(
    split: SplitTopic, log: RequestLog
) -> None:
    """Goal: late is not missing. Method: the pointer first, to an offset above the end; then its payload."""
    record = request(1)
    await split.log(b"before", pointer_to(record, 1, 1), b"after")
    reader = await log.open_reader(0)
    assert await reader.read(10, WAIT_S) == [(0, b"before")]
    assert await reader.read(10, 0.3) == []
    await split.payload(1, b"another", record)
    async with asyncio.timeout(WAIT_S):
        found: list[tuple[int, bytes]] = []
        while len(found) < 2:
            found += await reader.read(10, 1.0)
    assert found == [(1, record), (2, b"after")]


async def test_a_payload_that_stays_away_is_lost_once_most_brokers_say_so(
    split: SplitTopic, log: RequestLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a reader never waits for ever, and says for what; a job says it as well. It is never void, and another
    reader has it once it is back. Method: a pointer above the end, then its payload."""
    monkeypatch.setattr(payloads, "PAYLOAD_LATE_MAX_S", 0.3)
    await split.log(pointer_to(request(1), 1, 7))
    where = f"offset 7 of partition 1 of topic {payload_topic(split.settings.topic)} is"
    await refused_as_missing(log, f"{where} gone: the partition ends at 0")
    with pytest.raises(LogRefused, match=f"{where} gone: the partition ends at 0"):
        await asyncio.to_thread(lambda: list(read_stretch(split.settings, 0, 1)))
    await split.payload(1, *[b"orphan"] * 7, request(1))
    assert await read(log, 1) == [(0, request(1))]


async def test_a_payload_that_is_gone_stops_readers(split: SplitTopic, log: RequestLog) -> None:
    """Goal: records before it are read, then a code that a person needs. Method: delete the payload's records."""
    record = request(1)
    await split.payload(0, record, request(2))
    await split.log(b"before", pointer_to(record, 0, 0), b"after")
    await split.cut_off_payloads(0, 1)
    reader = await log.open_reader(0)
    assert await reader.read(10, WAIT_S) == [(0, b"before")]
    for _ in range(2):
        with pytest.raises(LogRefused, match=r"partition 0 of topic .*-payloads is gone") as refused:
            await reader.read(10, WAIT_S)
        assert refused.value.code is Code.LOG_PAYLOAD_MISSING
    with pytest.raises(LogRefused, match="is gone"):
        await asyncio.to_thread(lambda: list(read_stretch(split.settings, 0, 3)))


async def test_another_payload_stops_readers(split: SplitTopic, log: RequestLog) -> None:
    """Goal: changed content is never read, and never void. Method: a payload with one other byte."""
    record = request(1)
    await split.payload(0, record[:-1] + b"x")
    await split.log(pointer_to(record, 0, 0))
    reader = await log.open_reader(0)
    with pytest.raises(LogRefused, match="has another digest") as refused:
        await reader.read(1, WAIT_S)
    where = f"the payload at offset 0 of partition 0 of topic {payload_topic(split.settings.topic)}"
    assert str(refused.value) == f"LOG_PAYLOAD_MISSING: {where} has another digest than its pointer says"


async def test_what_is_no_pointer_is_read_as_it_is(split: SplitTopic, log: RequestLog) -> None:
    """Goal: hostile values are void records, for everyone. Method: a pointer out of bounds, one to a barrier."""
    barrier = b"\x97\x00" + bytes(100)
    await split.payload(0, barrier)
    values = [pointer_to(request(1), 32, 0), pointer_to(barrier, 0, 0)]
    await split.log(*values)
    assert await read(log, 2) == list(enumerate(values))


async def test_closing_is_prompt_while_a_payload_is_late(split: SplitTopic, log: RequestLog) -> None:
    """Goal: a replica that stops does not wait for a payload. Method: close during a read that waits."""
    await split.log(pointer_to(request(1), 0, 0))
    reader = await log.open_reader(0)
    waiting = asyncio.create_task(reader.read(1, WAIT_S))
    await asyncio.sleep(0.2)
    async with asyncio.timeout(2.0):
        await reader.close()
        with pytest.raises(LogUnavailable):
            await waiting


async def test_a_deleted_topic_of_payloads_stops_readers(
    split: SplitTopic, log: RequestLog, kafka_broker: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: nobody waits for ever for a topic that was deleted, also where an empty one was put in its place. Method:
    delete it; then create it again, with other payloads than there were."""
    monkeypatch.setattr(payloads, "PAYLOAD_LATE_MAX_S", 0.3)
    record, name = request(1), payload_topic(split.settings.topic)
    await split.payload(1, b"orphan", record)
    await split.log(pointer_to(record, 1, 1))
    assert await read(log, 1) == [(0, record)]
    await kafka_broker.delete_topic(name)
    await refused_as_missing(log, "is gone: brokers know no such partition")
    with pytest.raises(LogRefused, match="is gone: brokers know no such partition") as refused:  # a job
        await asyncio.to_thread(lambda: list(read_stretch(split.settings, 0, 1)))
    assert refused.value.code is Code.LOG_PAYLOAD_MISSING
    assert await log.hazards() == []  # without the setting, nobody says that there must be one
    await kafka_broker.create_topic(name, partitions=PARTITIONS)
    await split.payload(1, b"another", request(2))
    await refused_as_missing(log, "has another digest")


# ---- the writer ----


@pytest.fixture
async def writing(kafka_broker: KafkaCluster, make_topic: MakeTopic) -> KafkaSettings:
    """The settings of a log whose topic of payloads was created beside one that was there."""
    settings = split_settings(kafka_broker, await make_topic())
    await create_topic(settings)
    return settings


def split_settings(broker: KafkaCluster, topic: str, **changes: object) -> KafkaSettings:
    given = {"bootstrap_servers": broker.bootstrap_servers, "topic": topic, "single_broker": True}
    return KafkaSettings.model_validate(given | {"payload_partitions": PARTITIONS} | changes)


@asynccontextmanager
async def opened(settings: KafkaSettings) -> AsyncIterator[KafkaLog]:
    log = KafkaLog(settings)
    try:
        yield log
    finally:
        await log.close()


class Written(NamedTuple):
    """What is in the topics."""

    stored: list[bytes]
    payloads: list[list[bytes]]


async def stored_in(settings: KafkaSettings) -> Written:
    """The topics' values as they are."""

    def partition(topic: str, number: int, count: int) -> list[bytes]:
        consumer = Consumer({"bootstrap.servers": settings.bootstrap_servers, "group.id": "test"})
        consumer.assign([TopicPartition(topic, number, 0)])
        try:
            found = []
            while len(found) < count:
                found += [message.value() or b"" for message in consumer.consume(count - len(found), WAIT_S)]
            return found
        finally:
            consumer.close()

    admin = TopicAdmin(settings)
    try:
        ends = [await admin.end_of(payload_topic(settings.topic), number) for number in range(PARTITIONS)]
        stored = await asyncio.to_thread(partition, settings.topic, 0, await admin.end_offset())
        names = [(payload_topic(settings.topic), number, end) for number, end in enumerate(ends)]
        return Written(stored, [await asyncio.to_thread(partition, *name) for name in names])
    finally:
        await admin.close()


class TestSplitLog(LogContract):
    """Everything that a request log promises, with a topic of payloads."""

    @pytest.fixture
    def topic_under_test(self, kafka_broker: KafkaCluster, writing: KafkaSettings) -> KafkaUnderTest:
        return SplitUnderTest(kafka_broker, writing.topic)


class SplitUnderTest(KafkaUnderTest):
    """A log with a topic of payloads, as the contract suite sees it."""

    def log(self) -> RequestLog:
        return KafkaLog(split_settings(self._broker, self._topic))


async def test_large_requests_go_to_the_second_topic_and_are_read_whole(writing: KafkaSettings) -> None:
    """Goal: every reader has the records that were appended, and only pointers to the large ones cross the log's topic.
    Method: large and small requests and a barrier, alone and together; a reader without the setting."""
    small, barrier = [request(number, 100) for number in range(5)], b"\x97\x00" + bytes(9_000)
    large = [request(number, 40_000) for number in range(60)]
    async with opened(writing) as log:
        assert await log.check()
        writer = await log.open_writer()
        writer.append_all([*large[:50], *small, barrier])
        for record in large[50:]:
            writer.append(record)
        async with opened(writing.model_copy(update={"payload_partitions": 0})) as other:
            records = await read(other, 66)
        assert writer.failed_count == 0
    found = [value for _, value in records]
    assert found[:6] == [*small, barrier]  # they wait for no payload
    assert sorted(found[6:]) == large
    written = await stored_in(writing)
    assert [len(part) for part in written.payloads] == [30, 30]
    assert all(pointer_in(value) for value in written.stored[6:])


async def test_a_lone_large_request_waits_for_no_timer(writing: KafkaSettings) -> None:
    """Goal: reports of delivery are served as they come, not every SERVE_EVERY_S. Method: the best of ten requests,
    from the append to the read; each needs two acknowledgements in a row."""
    async with opened(writing) as log:
        writer, reader = await log.open_writer(), await log.open_reader(0)
        took_s = []
        for number in range(10):
            began_s = monotonic()
            writer.append(request(number, 40_000))
            while not await reader.read(1, 1.0):
                pass
            took_s.append(monotonic() - began_s)
    assert min(took_s) < SERVE_EVERY_S / 2


async def test_a_frozen_broker_loses_payloads_as_it_loses_records(
    kafka_broker: KafkaCluster, writing: KafkaSettings
) -> None:
    """Goal: what nobody acknowledges has no pointer, is counted, and does not hold the close up. Method: freeze the
    broker beyond the time for appends, and read what is in the log once it goes on."""
    settings = writing.model_copy(update={"append_timeout_s": 0.5})
    async with opened(settings) as log:
        writer = await log.open_writer()
        with frozen(kafka_broker):
            writer.append_all([request(1), request(2)])

            async def both_lost() -> bool:
                return writer.failed_count == 2

            await eventually(both_lost, WAIT_S)
            writer.append(request(3))  # in flight at the close
            async with asyncio.timeout(1.0):
                await writer.close()
        assert writer.failed_count == 2
        assert await log.end_offset() == 0
        again = await log.open_writer()
        again.append(request(4))
        assert await read(log, 1) == [(0, request(4))]


async def test_a_writer_that_ends_around_an_acknowledgement_leaves_no_harm(
    writing: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: wherever a writer is killed, readers read on. Method: one that ends with its payload acknowledged and the
    pointer not handed over; one that ends as soon as the pointer is in the log; a third goes on."""
    async with opened(writing) as log:
        with monkeypatch.context() as killed:
            killed.setattr(KafkaWriter, "_settle", lambda writer, pointers, lost: None)
            first = await log.open_writer()
            first.append(request(1))
            await eventually(partial(has_payloads, writing, 1), WAIT_S)
            await first.close()
        assert await log.end_offset() == 0
        second = await log.open_writer()
        second.append(request(2))
        await eventually(partial(ends_at, log, 1), WAIT_S)
        await second.close()
        third = await log.open_writer()
        third.append(request(3))
        assert await read(log, 2) == [(0, request(2)), (1, request(3))]


async def ends_at(log: RequestLog, offset: int) -> bool:
    return await log.end_offset() == offset


async def has_payloads(settings: KafkaSettings, count: int) -> bool:
    return sum(map(len, (await stored_in(settings)).payloads)) == count


async def test_a_missing_or_unsafe_topic_of_payloads_is_named(
    kafka_broker: KafkaCluster, make_topic: MakeTopic
) -> None:
    """Goal: no replica starts to write where payloads would not be kept. Method: no such topic; too few partitions;
    a retention; payloads that are gone. All of it for a replica that starts, one that runs, and the doctor."""
    settings = split_settings(kafka_broker, await make_topic())
    name = payload_topic(settings.topic)
    async with opened(settings) as log:
        await unsafe(log, f"topic {name} is not there, and payloads are to be written to it")
        with pytest.raises(LogUnavailable, match=name):
            await log.open_writer()
        await kafka_broker.create_topic(name, partitions=1)
        await eventually(partial(is_led, settings, 1), WAIT_S)
        await unsafe(log, f"partitions is 1, required is 2 or more (topic {name})")
        with pytest.raises(LogRefused, match="it has 1 partitions of 2") as refused:
            await log.open_writer()
        assert refused.value.code is Code.TOPIC_UNSAFE
    async with opened(settings.model_copy(update={"payload_partitions": 1})) as log:
        assert await log.check()
        await kafka_broker.set_topic_config(name, {"retention.ms": "1000"})
        await unsafe(log, f"retention.ms is 1000, required is -1 (topic {name})")
        await kafka_broker.set_topic_config(name, {"retention.ms": "-1"})
        writer = await log.open_writer()
        writer.append(request(1))
        await read(log, 1)
        gone = TopicPartition(name, 0, 1)
        await asyncio.to_thread(kafka_broker.admin().delete_records([gone])[gone].result, WAIT_S)
        lost = f"partition 0 of topic {name} begins at offset 1: the payloads before are gone"
        assert await log.hazards() == [lost]
        with pytest.raises(LogRefused, match="begins at offset 1") as refused:
            await log.check()
        assert refused.value.code is Code.LOG_PAYLOAD_MISSING


async def unsafe(log: KafkaLog, violation: str) -> None:
    assert await log.hazards() == [violation]
    with pytest.raises(LogRefused) as refused:
        await log.check()
    assert (refused.value.code, violation in refused.value.detail) == (Code.TOPIC_UNSAFE, True)


async def is_led(settings: KafkaSettings, partitions: int) -> bool:
    admin = TopicAdmin(settings)
    try:
        for partition in range(partitions):
            await admin.end_of(payload_topic(settings.topic), partition)
    except (LogUnavailable, LogRefused):
        return False
    finally:
        await admin.close()
    return True
