"""Slices of the topic and slices of files give the same records."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer

from pipeline.jobs import slices
from pipeline.jobs.slices import LogSlices, served_log
from replica.local.kafka import KafkaCluster
from replica.log.kafka.settings import KafkaSettings
from tests.pipeline.log_files import write_log
from tests.pipeline.signed_log import log_values


@pytest.mark.kafka
def test_the_topic_is_read_as_files_are(
    kafka_broker: KafkaCluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: two ways to one log, also up to an offset. Method: the same records in a topic and in a file."""
    monkeypatch.setattr(slices, "SLICE_RECORDS", 4)
    values = log_values()
    producer = Producer({"bootstrap.servers": kafka_broker.bootstrap_servers})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(20) == 0
    settings = KafkaSettings(bootstrap_servers=kafka_broker.bootstrap_servers, topic=topic, single_broker=True)
    assert records(served_log(settings)) == records(write_log(tmp_path / "log", values)) == values
    assert records(served_log(settings, until_offset=5)) == values[:6]


def records(log: LogSlices) -> list[bytes]:
    """All records of a log, slice by slice; offsets must go on from slice to slice."""
    found: list[bytes] = []
    for number in range(len(log)):
        columns = log.read(number)
        assert columns.first_offset == len(found)
        found += [columns.value(row) for row in range(len(columns))]
    return found
