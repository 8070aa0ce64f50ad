"""One contract for both ways to read the log from Spark, on a real broker."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pipeline.failures import explained
from pipeline.sources import log, stretch
from pipeline.sources.log import Connector, log_frame
from pipeline.sources.stretch import stretches
from replica.local.kafka import KafkaCluster
from replica.log.kafka import stretch as kafka_stretch
from replica.log.kafka.pointers import payload_topic, pointer_to
from replica.log.kafka.settings import KafkaSecurity, KafkaSettings
from replica.notary.errors import ConfigError, LogUnavailable

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

RECORDS = 100
CONNECTORS: list[Connector] = ["spark", "python"]
ReadLog = Callable[..., DataFrame]


@pytest.fixture(scope="module")
def settings(kafka_broker: KafkaCluster) -> KafkaSettings:
    """A topic with a hundred records: plain ones, one with key and headers, one empty, one null."""
    topic = "sources"
    asyncio.run(kafka_broker.create_topic(topic))
    producer = Producer({"bootstrap.servers": kafka_broker.bootstrap_servers, "linger.ms": 5})
    for number in range(RECORDS):
        odd = {7: {"key": b"k", "headers": [("a", b"1"), ("a", None)]}}.get(number, {})
        value = {8: b"", 9: None}.get(number, b"value %d" % number)
        producer.produce(topic, value, partition=0, timestamp=1_700_000_000_000 + number, **odd)
    assert producer.flush(20) == 0
    return KafkaSettings(bootstrap_servers=kafka_broker.bootstrap_servers, topic=topic, single_broker=True)


@pytest.mark.parametrize("connector", CONNECTORS)
def test_every_record_comes_once_as_it_was_written(
    spark: SparkSession, settings: KafkaSettings, connector: Connector
) -> None:
    """Goal: nothing is lost, doubled or changed. Method: read key, value, time and headers of a hundred records."""
    rows = log_frame(spark, settings, 0, RECORDS, splits=4, connector=connector).orderBy("offset").collect()
    assert [row.offset for row in rows] == list(range(RECORDS))
    assert [row.timestamp_ms for row in rows] == [1_700_000_000_000 + number for number in range(RECORDS)]
    assert [rows[number].value for number in (6, 8, 9)] == [b"value 6", b"", None]
    assert rows[6].key is None and rows[6].headers is None
    assert (rows[7].key, [(h.key, h.value) for h in rows[7].headers]) == (b"k", [("a", b"1"), ("a", None)])


@pytest.mark.parametrize("secret", ['a "pass;word"', "ends in \\", '\\" x="y', "it's \\n; no line", '"'])
def test_a_password_is_to_the_jvm_what_it_is_to_us(spark: SparkSession, tmp_path: Path, secret: str) -> None:
    """Goal: no password is changed, cut, or taken for an option; no plan of a query shows it. Method: the parser of
    Kafka's own client; the settings and the plans in words."""
    file = tmp_path / "password"
    file.write_text(secret)
    file.chmod(0o600)
    security = KafkaSecurity(protocol="SASL_PLAINTEXT", sasl_username=secret, sasl_password_file=file)
    settings = KafkaSettings(bootstrap_servers="127.0.0.1:1", topic="none", security=security)
    jvm: Any = spark._jvm
    given = jvm.java.util.HashMap()
    told = log._client_options(settings)["kafka.sasl.jaas.config"]
    given.put("sasl.jaas.config", jvm.org.apache.kafka.common.config.types.Password(told))
    (entry,) = jvm.org.apache.kafka.common.security.JaasContext.loadClientContext(given).configurationEntries()
    assert dict(entry.getOptions()) == {"username": secret, "password": secret}
    plans = log_frame(spark, settings, 0, 5, connector="spark")._jdf.queryExecution()
    assert told not in plans.analyzed().toString() + plans.optimizedPlan().toString()


@pytest.mark.parametrize("connector", CONNECTORS)
def test_partitions_are_stretches_in_order(spark: SparkSession, settings: KafkaSettings, connector: Connector) -> None:
    """Goal: a partition can be read as a stretch of the log. Method: read a range in three, compare their offsets."""
    rows = log_frame(spark, settings, 10, 71, splits=3, connector=connector)
    rows = rows.withColumn("part", F.spark_partition_id())
    parts: dict[int, list[int]] = {}
    for row in rows.collect():  # partition by partition, each in its order
        parts.setdefault(row.part, []).append(row.offset)
    assert len(parts) == 3
    assert all(offsets == list(range(offsets[0], offsets[-1] + 1)) for offsets in parts.values())
    assert sorted(offset for offsets in parts.values() for offset in offsets) == list(range(10, 71))


@pytest.mark.parametrize("connector", CONNECTORS)
def test_an_empty_range_has_no_rows(spark: SparkSession, settings: KafkaSettings, connector: Connector) -> None:
    """Goal: nothing new is no error. Method: read from the end to the end."""
    assert log_frame(spark, settings, RECORDS, RECORDS, connector=connector).count() == 0


@pytest.mark.parametrize("connector", CONNECTORS)
def test_a_log_without_its_beginning_fails_the_query(
    spark: SparkSession, kafka_broker: KafkaCluster, connector: Connector
) -> None:
    """Goal: a truncated log is never taken for a short one. Method: delete the first records, ask for them."""
    topic = f"truncated-{connector}"
    asyncio.run(kafka_broker.create_topic(topic))
    producer = Producer({"bootstrap.servers": kafka_broker.bootstrap_servers})
    for number in range(10):
        producer.produce(topic, b"%d" % number, partition=0)
    assert producer.flush(20) == 0
    from confluent_kafka import TopicPartition

    admin: AdminClient = kafka_broker.admin()
    for future in admin.delete_records([TopicPartition(topic, 0, 5)]).values():
        future.result(20)
    settings = KafkaSettings(bootstrap_servers=kafka_broker.bootstrap_servers, topic=topic, single_broker=True)
    with pytest.raises(Exception, match=r"(?i)offset|data"):
        log_frame(spark, settings, 0, 10, connector=connector).collect()
    assert log_frame(spark, settings, 5, 10, connector=connector).count() == 5


def test_sparks_connector_refuses_pointers_to_payloads_and_auto_does_not_choose_it(
    spark: SparkSession, kafka_broker: KafkaCluster
) -> None:
    """Goal: no job takes a pointer for a record, and who names no connector gets the record. Method: one pointer."""
    topic, record = "pointers", b"\x9d\x01\x02 a request"
    asyncio.run(kafka_broker.create_topic(topic))
    asyncio.run(kafka_broker.create_topic(payload_topic(topic)))
    producer = Producer({"bootstrap.servers": kafka_broker.bootstrap_servers})
    producer.produce(payload_topic(topic), record, partition=0)
    producer.produce(topic, pointer_to(record, 0, 0), partition=0)
    assert producer.flush(20) == 0
    settings = KafkaSettings(bootstrap_servers=kafka_broker.bootstrap_servers, topic=topic, single_broker=True)
    with pytest.raises(ConfigError, match="--connector python"), explained():
        log_frame(spark, settings, 0, 1, connector="spark").collect()
    assert [row.value for row in log_frame(spark, settings, 0, 1).collect()] == [record]


@pytest.fixture
def silent_broker() -> Iterator[KafkaSettings]:
    """Something that takes connections, and sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:  # the kernel accepts for it
        servers = f"127.0.0.1:{listening.getsockname()[1]}"
        yield KafkaSettings(bootstrap_servers=servers, topic="silent", single_broker=True)


@pytest.mark.thorough
def test_sparks_connector_does_not_wait_for_a_silent_broker_for_ever(
    spark: SparkSession, silent_broker: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: the operator reads that the log cannot be reached. Method: a server that only accepts connections."""
    monkeypatch.setattr(kafka_stretch, "SILENCE_MAX_S", 2.0)
    with pytest.raises(LogUnavailable, match="no answer"), explained():
        log_frame(spark, silent_broker, 0, 10, connector="spark").collect()


@pytest.mark.thorough
def test_the_python_source_does_not_wait_for_a_silent_broker_for_ever(
    silent_broker: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: the same for the other source. Method: read a stretch as a task does."""
    monkeypatch.setattr(kafka_stretch, "SILENCE_MAX_S", 2.0)
    with pytest.raises(LogUnavailable):
        list(stretch.read_stretch(silent_broker, 0, 10))


def test_stretches_cover_a_range() -> None:
    """Goal: no record is in two stretches or in none. Method: cut ranges into more and fewer parts than records."""
    assert stretches(3, 10, 3) == [(3, 5), (5, 7), (7, 10)]
    assert stretches(3, 5, 9) == [(3, 4), (4, 5)]
    assert stretches(3, 3, 2) == []
