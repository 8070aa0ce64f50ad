"""Fills a request log with records as a notary writes them, many times faster than through its API.

The records are those of one activation of a replica that never was. They count, so every replica judges and indexes
them by itself, and the first active after them publishes their completions. They name a registered key of their party,
so they are notarised. Their signatures are random: front ends check those before anything is logged, and nobody looks
at them again.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator

from confluent_kafka import Producer

from ledger_api.client import Party
from replica.log.kafka.settings import KafkaSettings
from replica.notary.formats import Formats
from replica.notary.granters import Database
from replica.notary.records import BarrierRecord, encode_record, request_record
from tests.bench.workload import unsigned_submission

FLUSH_MAX_S = 120.0
DEDUPLICATION_US = 86_400_000_000


def fill_log(settings: KafkaSettings, epoch: int, count: int, inputs: int, party: Party) -> None:
    """Append a barrier of `epoch` and `count` requests of the party, of so many inputs each. Blocks.

    No replica may be writing."""
    producer = Producer(
        {
            "bootstrap.servers": settings.bootstrap_servers,
            "acks": "all",
            "max.in.flight.requests.per.connection": 1,  # keeps the order
            "linger.ms": 20,
            "delivery.report.only.error": True,
            "on_delivery": _refuse_failure,
        }
    )
    for value in filling(epoch, count, inputs, party):
        while True:
            try:
                producer.produce(settings.topic, value, partition=0)
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(FLUSH_MAX_S):
        raise RuntimeError("the broker did not take every record")


def filling(epoch: int, count: int, inputs: int, party: Party) -> Iterator[bytes]:
    """The records that `fill_log` appends."""
    source = random.Random(os.urandom(16))
    activation_id, formats = source.randbytes(16), Formats()
    yield encode_record(
        BarrierRecord(epoch, activation_id, "filler", Database("postgres", "0", 0), formats.records, formats.rules)
    )
    for sequence in range(count):
        stamp_us = time.time_ns() // 1_000
        submission = unsigned_submission(source, inputs, party)
        yield encode_record(
            request_record(formats.records, activation_id, sequence, stamp_us, submission, DEDUPLICATION_US)
        )


def _refuse_failure(error: object, _: object) -> None:
    if error is not None:
        raise RuntimeError(f"a record was not appended: {error}")
