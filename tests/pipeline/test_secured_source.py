"""Spark's own connector on a broker with TLS, certificates and SCRAM: the settings are those of the replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from pyspark.sql import SparkSession

from pipeline.failures import explained
from pipeline.sources.log import log_frame
from replica.local.ports import PortReservation
from replica.log.kafka.settings import KafkaSettings
from replica.notary.errors import NotaryError
from tests.certificates import Authority
from tests.secure_kafka import ADMINISTRATOR, ANSWER_MAX_S, SecureKafka

pytestmark = [pytest.mark.thorough, pytest.mark.spark, pytest.mark.kafka]

TOPIC, PASSWORD, RECORDS = "secured", 'a "pass;word"', 50


@pytest.fixture(scope="module")
def kafka(servers_folder: Path, ports: PortReservation) -> Iterator[SecureKafka]:
    """A secure broker with fifty records; `reader` may read them, with a password or a certificate, and nobody else."""
    secure = SecureKafka(servers_folder / "kafka-secure-source", ports)
    try:
        asyncio.run(_prepare(secure))
        yield secure
    finally:
        asyncio.run(secure.stop())


async def _prepare(secure: SecureKafka) -> None:
    await secure.start()
    for name in ("reader", "stranger"):
        await secure.set_password(name, PASSWORD)
    (made,) = secure.administrator.create_topics([NewTopic(TOPIC, 1, 1)]).values()
    await asyncio.to_thread(made.result, ANSWER_MAX_S)
    allow = 'kafka-acls.sh --bootstrap-server "$KAFKA" --command-config "$KAFKA_ADMIN" --add'
    for principal in ("User:reader", "User:CN=reader"):
        await secure.grant(
            f"{allow} --allow-principal {principal} --operation Read --operation Describe --topic {TOPIC}"
        )
    settings = secure.by_certificate(ADMINISTRATOR, TOPIC)
    producer = Producer(settings.security.client_config() | {"bootstrap.servers": settings.bootstrap_servers})
    for number in range(RECORDS):
        producer.produce(TOPIC, b"value %d" % number, partition=0)
    assert producer.flush(ANSWER_MAX_S) == 0


def read(spark: SparkSession, settings: KafkaSettings) -> list[bytes]:
    """All values, as a job reads them."""
    with explained():
        rows = log_frame(spark, settings, 0, RECORDS, splits=2, connector="spark").orderBy("offset").collect()
    return [bytes(row.value) for row in rows]


@pytest.mark.parametrize("way", [pytest.param("SCRAM-SHA-256", marks=pytest.mark.slow), "SCRAM-SHA-512", "mutual TLS"])
def test_every_way_in(spark: SparkSession, kafka: SecureKafka, way: str) -> None:
    """Goal: the JVM's client gets in with what the replicas' client is configured with. Method: each way in, a
    password with quotes and a semicolon in it."""
    by_certificate = way == "mutual TLS"
    settings = (
        kafka.by_certificate("reader", TOPIC) if by_certificate else kafka.by_password("reader", PASSWORD, TOPIC, way)
    )
    assert read(spark, settings) == [b"value %d" % number for number in range(RECORDS)]


@pytest.mark.slow
@pytest.mark.parametrize("who", ["no rights", "wrong password", "another authority's certificate"])
def test_nobody_else(spark: SparkSession, kafka: SecureKafka, tmp_path: Path, who: str) -> None:
    """Goal: who may not read gets an error of ours, which shows no password. Method: three who may not."""
    settings = {
        "no rights": lambda: kafka.by_password("stranger", PASSWORD, TOPIC),
        "wrong password": lambda: kafka.by_password("reader", "wrong-one", TOPIC),
        "another authority's certificate": lambda: kafka.by_certificate("reader", TOPIC, Authority(tmp_path / "pki")),
    }[who]()
    with pytest.raises(NotaryError) as refused:
        read(spark, settings)
    assert PASSWORD not in str(refused.value) and "wrong-one" not in str(refused.value)
