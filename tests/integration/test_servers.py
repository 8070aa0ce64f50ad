"""The real servers that the other integration tests stand on."""

from __future__ import annotations

import psycopg
import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import ConfigResource, ResourceType

from replica.local.kafka import KafkaCluster
from replica.local.postgres import PostgresServer
from tests.integration.conftest import MakeDatabase


@pytest.mark.postgres
async def test_each_test_gets_an_empty_durable_database_of_its_own(
    postgres_server: PostgresServer, make_database: MakeDatabase
) -> None:
    """Goal: tests cannot see one another's rows. Method: two databases, a table in one, look from both."""
    first, second = await make_database(), await make_database()
    async with await psycopg.AsyncConnection.connect(first, autocommit=True) as connection:
        await connection.execute("CREATE TABLE here (n int)")
        durable = await (await connection.execute("SHOW synchronous_commit")).fetchone()
        assert durable == ("on",)
        superuser = await (await connection.execute("SHOW is_superuser")).fetchone()
        assert superuser == ("off",)
    async with await psycopg.AsyncConnection.connect(second) as connection:
        found = await (await connection.execute("SELECT to_regclass('here')")).fetchone()
        assert found == (None,)


@pytest.mark.postgres
async def test_a_wrong_password_is_refused(postgres_server: PostgresServer, database_dsn: str) -> None:
    """Goal: loopback is no excuse to trust. Method: connect with another password."""
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        await psycopg.AsyncConnection.connect(database_dsn, password="wrong")


@pytest.mark.kafka
def test_a_topic_keeps_the_contract_of_the_request_log(kafka_broker: KafkaCluster, topic: str) -> None:
    """Goal: one partition, kept for ever, no unclean leader. Method: ask the broker for the topic's settings."""
    admin = kafka_broker.admin()
    assert len(admin.list_topics(topic, timeout=10).topics[topic].partitions) == 1
    resource = ConfigResource(ResourceType.TOPIC, topic)
    settings = admin.describe_configs([resource])[resource].result(10)
    contract = {
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "min.insync.replicas": "1",
        "unclean.leader.election.enable": "false",
        "flush.messages": "1",
    }
    assert {name: settings[name].value for name in contract} == contract


@pytest.mark.kafka
def test_a_topic_never_appears_by_itself(kafka_broker: KafkaCluster) -> None:
    """Goal: a mistyped topic is an error, not an empty log. Method: ask for the offsets of one that nobody made."""
    settings = {"bootstrap.servers": kafka_broker.bootstrap_servers, "group.id": "g", "allow.auto.create.topics": True}
    consumer = Consumer(settings)
    try:
        with pytest.raises(KafkaException):
            consumer.get_watermark_offsets(TopicPartition("nobody-made-this", 0), timeout=10)
    finally:
        consumer.close()
    assert "nobody-made-this" not in kafka_broker.admin().list_topics(timeout=10).topics
