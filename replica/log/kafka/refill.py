"""Puts records back into a topic at their original offsets: one ordered producer, each acknowledgement checked.

No other client may write to the topic meanwhile. The topic keeps the records' original times.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from replica.log.admin import StoredRecord
from replica.log.kafka.librdkafka import MESSAGE_MAX_BYTES, PARTITION, client_config, connect, error_in, meaning_of
from replica.log.kafka.settings import KafkaSettings
from replica.log.kafka.topic import change_topic, create_topic
from replica.notary.errors import RestoreRefused

TIME_SETTING = "message.timestamp.type"
KEEP_TIMES, BROKER_TIMES = "CreateTime", "LogAppendTime"
_QUEUE_RECORDS = 50_000
_FLUSH_MAX_S = 60.0

OnRecord = Callable[[int], None]
"""Takes the number of records that are in the topic."""


def refill(
    settings: KafkaSettings,
    records: Iterable[StoredRecord],
    first: int,
    end: int,
    on_record: OnRecord,
    *,
    goes_on: bool = False,
) -> str:
    """Write records with offsets [first, end) after the records that are there, and return the topic's id.

    `goes_on`: more follow, so the topic goes on keeping the records' own times until `finish`. If that were set to and
    fro for each run, a broker that learns of it late would stamp a record.

    Creates the topic if there is none. Raises RestoreRefused when a record gets another offset than its own, and
    LogUnavailable.
    """
    topic_id = asyncio.run(create_topic(settings))
    _set_times(settings, KEEP_TIMES)
    _produce(settings, records, first, end, on_record)
    if not goes_on:
        finish(settings)
    return topic_id


def finish(settings: KafkaSettings) -> None:
    """Let the brokers stamp what is appended from now on, as the topic of a log that replicas write does."""
    _set_times(settings, BROKER_TIMES)


def _produce(
    settings: KafkaSettings, records: Iterable[StoredRecord], first: int, end: int, on_record: OnRecord
) -> None:
    acknowledged = _Acknowledgements(first, on_record)
    producer = connect(Producer, _producer_config(settings, acknowledged))
    try:
        for record in records:
            _send(producer, settings.topic, record)
            acknowledged.refuse()
        producer.flush(_FLUSH_MAX_S)
    except KafkaException as exception:
        raise meaning_of(error_in(exception), f"writing to topic {settings.topic}") from None
    finally:
        producer.purge()
        producer.flush(1.0)
    acknowledged.refuse()
    if acknowledged.following != end:
        raise RestoreRefused(f"acknowledged up to {acknowledged.following - 1} of {end - 1}: repeat with --resume")


class _Acknowledgements:
    """Checks that each acknowledgement names the offset after the one before."""

    def __init__(self, first: int, on_record: OnRecord) -> None:
        self.following = first
        self._problem = ""
        self._on_record = on_record

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        if self._problem:
            return
        if error is not None:
            self._problem = f"the record for offset {self.following} was not written: {error.str()}; use --resume"
        elif message.offset() != self.following:
            self._problem = (
                f"the record of offset {self.following} came to lie at {message.offset()}: somebody else writes to the"
                " topic. Delete it"
            )
        else:
            self.following += 1
            if self.following % 1_000 == 0:
                self._on_record(self.following)

    def refuse(self) -> None:
        """Raise RestoreRefused if an acknowledgement named another offset."""
        if self._problem:
            raise RestoreRefused(self._problem)


def _producer_config(settings: KafkaSettings, on_delivery: _Acknowledgements) -> dict[str, Any]:
    return client_config(settings) | {
        "acks": "all",
        "enable.idempotence": True,  # in order, each once, while this producer lives
        "enable.gapless.guarantee": True,
        "linger.ms": 20,
        "compression.type": settings.compression,
        "message.max.bytes": MESSAGE_MAX_BYTES,
        "queue.buffering.max.messages": _QUEUE_RECORDS,
        "on_delivery": on_delivery,
    }


def _send(producer: Producer, topic: str, record: StoredRecord) -> None:
    while True:
        try:
            producer.produce(
                topic,
                record.value,
                record.key,
                partition=PARTITION,
                timestamp=record.timestamp_ms,
                headers=list(record.headers) or None,
            )
            producer.poll(0)
            return
        except BufferError:
            producer.poll(0.1)


def _set_times(settings: KafkaSettings, value: str) -> None:
    """Set whether the topic keeps the records' own times, or its brokers stamp them."""
    asyncio.run(change_topic(settings, {TIME_SETTING: value}))
