"""A log on a real broker with pointers to payloads in a second topic: what readers return, wait for and refuse."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from confluent_kafka import Producer, TopicPartition

from replica.local.kafka import KafkaCluster
from replica.log.interface import LogRecords, RequestLog
from replica.log.kafka import payloads
from replica.log.kafka.log import KafkaLog
from replica.log.kafka.pointers import payload_topic, pointer_to
from replica.log.kafka.settings import KafkaSettings
from replica.log.kafka.stretch import read_stretch
from replica.notary.errors import Code, LogRefused, LogUnavailable
from tests.integration.conftest import MakeTopic

pytestmark = pytest.mark.kafka

WAIT_S = 10.0
PARTITIONS = 2


def request(number: int, size: int = 5_000) -> bytes:
    """What begins as a request of format 2: the log looks no further."""
    return b"\x98\x01\x02" + number.to_bytes(8) + bytes(size)


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


async def read(log: RequestLog, count: int, first: int = 0) -> LogRecords:
    reader = await log.open_reader(first)
    found: list[tuple[int, bytes]] = []
    async with asyncio.timeout(WAIT_S):
        while len(found) < count:
            found += await reader.read(count - len(found), 1.0)
    return found


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


async def test_a_payload_that_stays_away_is_unavailable(
    split: SplitTopic, log: RequestLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a reader never waits for ever, and says for what; it is never void, and another reader has it once it is
    there. Method: a pointer above the end, then its payload."""
    monkeypatch.setattr(payloads, "PAYLOAD_LATE_MAX_S", 0.3)
    await split.log(pointer_to(request(1), 1, 7))
    reader = await log.open_reader(0)
    where = f"offset 7 of partition 1 of topic {payload_topic(split.settings.topic)} is not there yet"
    with pytest.raises(LogUnavailable, match=where):
        async with asyncio.timeout(WAIT_S):
            while not await reader.read(1, 0.2):
                pass
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
