"""A Spark data source over confluent-kafka, for where Spark's own connector cannot be had.

It is what the replicas read the log with, so it needs no jar and no second set of security settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from time import monotonic
from typing import Any, ClassVar

import pyarrow as pa
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from replica.log.kafka.librdkafka import connect, error_in, meaning_of, passes_by_itself
from replica.log.kafka.log import consumer_config
from replica.log.kafka.settings import KafkaSettings
from replica.log.kafka.topic import PARTITION
from replica.notary.errors import LogRefused, LogUnavailable

BATCH_RECORDS = 10_000
SILENCE_MAX_S = 30.0  # a broker that gives nothing for so long fails the query
_POLL_S = 0.2

ARROW_SCHEMA = pa.schema(
    [
        ("offset", pa.int64()),
        ("timestamp_ms", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)


@dataclass
class Stretch(InputPartition):
    """Offsets [first, end) of the log, read by one task."""

    first: int
    end: int


class LogSource(DataSource):
    """Format `notary_log`. Options: `settings` (KafkaSettings as JSON, no secrets), `first`, `end`, `splits`."""

    SCHEMA: ClassVar[str] = (
        "offset bigint, timestamp_ms bigint, key binary, value binary, headers array<struct<key:string,value:binary>>"
    )

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "notary_log"

    def schema(self) -> str:
        """The same columns whatever the options."""
        return self.SCHEMA

    def reader(self, schema: StructType) -> LogSourceReader:
        """Called once a query."""
        return LogSourceReader(self.options)


class LogSourceReader(DataSourceReader):
    """Reads a range of offsets in stretches of nearly equal length."""

    def __init__(self, options: Any) -> None:
        self._settings = options["settings"]
        self._first, self._end, self._splits = (int(options[name]) for name in ("first", "end", "splits"))

    def partitions(self) -> Sequence[InputPartition]:
        """The stretches, in order. An empty range has one, because Spark asks a reader without any for all it has."""
        cut = stretches(self._first, self._end, self._splits) or [(self._first, self._first)]
        return [Stretch(first, end) for first, end in cut]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one stretch, all of them or an error."""
        if not isinstance(partition, Stretch):
            raise TypeError(f"not a stretch of the log: {partition}")
        yield from read_stretch(KafkaSettings.model_validate_json(self._settings), partition.first, partition.end)


def stretches(first: int, end: int, splits: int) -> list[tuple[int, int]]:
    """The range [first, end) in at most `splits` ranges, none of them empty, of nearly equal length."""
    count = min(splits, end - first)
    edges = [first + (end - first) * number // count for number in range(count + 1)] if count > 0 else []
    return list(pairwise(edges))


def read_stretch(settings: KafkaSettings, first: int, end: int) -> Iterator[pa.RecordBatch]:
    """The records [first, end) as batches of ARROW_SCHEMA. Raises LogRefused on a gap, and LogUnavailable."""
    consumer = connect(Consumer, consumer_config(settings))
    try:
        consumer.assign([TopicPartition(settings.topic, PARTITION, first)])
        following, heard_s = first, monotonic()
        while following < end:
            messages = _take(consumer, min(BATCH_RECORDS, end - following))
            if messages:
                heard_s = monotonic()
                yield _batch(messages, following)
                following += len(messages)
            elif monotonic() - heard_s > SILENCE_MAX_S:
                raise LogUnavailable(f"no record at offset {following} within {SILENCE_MAX_S:g} s")
    except KafkaException as exception:
        raise meaning_of(error_in(exception), f"reading topic {settings.topic}") from None
    finally:
        consumer.close()


def _take(consumer: Consumer, count: int) -> list[Message]:
    """Up to `count` records; what is there already, or the first that comes within a moment."""
    taken = consumer.consume(count, 0) or consumer.consume(1, _POLL_S)
    found = []
    for message in taken:
        error = message.error()
        if error is None:
            found.append(message)
        elif not passes_by_itself(error):
            raise KafkaException(error)
    return found


def _batch(messages: list[Message], first: int) -> pa.RecordBatch:
    offsets = [message.offset() for message in messages]
    if offsets != list(range(first, first + len(messages))):
        raise LogRefused(f"the log goes on at offset {offsets[0]} to {offsets[-1]}, but {first} is next")
    return pa.RecordBatch.from_arrays(
        [
            pa.array(offsets, pa.int64()),
            pa.array([message.timestamp()[1] for message in messages], pa.int64()),
            pa.array([message.key() for message in messages], pa.binary()),
            pa.array([message.value() for message in messages], pa.binary()),
            pa.array([_headers(message) for message in messages], ARROW_SCHEMA.field("headers").type),
        ],
        schema=ARROW_SCHEMA,
    )


def _headers(message: Message) -> list[dict[str, Any]] | None:
    """As Spark's connector gives them: null when there is none."""
    found: Any = message.headers()
    return [{"key": key, "value": value} for key, value in found] if found else None
