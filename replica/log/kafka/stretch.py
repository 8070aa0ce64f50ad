"""Reads records of the topic with everything that the brokers keep of them. For jobs: blocks, needs no event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from replica.log.admin import Header, Stretch
from replica.log.kafka.agreement import refuse_lost_payload
from replica.log.kafka.librdkafka import PARTITION, connect, consumer_config, error_in, meaning_of, passes_by_itself
from replica.log.kafka.payloads import PayloadLate, Payloads
from replica.log.kafka.pointers import Pointer, pointer_in
from replica.log.kafka.settings import KafkaSettings
from replica.notary.errors import LogRefused, LogUnavailable

BATCH_RECORDS = 10_000
BATCH_BYTES = 16 * 1_048_576  # of records whose payloads are in the second topic
SILENCE_MAX_S = 30.0  # the job fails when a broker sends nothing for this long
_POLL_S = 0.2


def read_stretch(settings: KafkaSettings, first: int, end: int) -> Iterator[Stretch]:
    """The records [first, end), at most BATCH_RECORDS at a time. Raises LogUnavailable, and LogRefused on a gap, or
    where a payload is lost."""
    consumer = connect(Consumer, consumer_config(settings))
    payloads = Payloads(settings)
    try:
        consumer.assign([TopicPartition(settings.topic, PARTITION, first)])
        following, heard_s = first, monotonic()
        while following < end:
            messages = _take(consumer, min(BATCH_RECORDS, end - following))
            if messages:
                heard_s = monotonic()
                yield from _merged(_stretch(messages, following), payloads)
                following += len(messages)
            elif monotonic() - heard_s > SILENCE_MAX_S:
                raise LogUnavailable(f"no record at offset {following} within {SILENCE_MAX_S:g} s")
    except KafkaException as exception:
        raise meaning_of(error_in(exception), f"reading topic {settings.topic}") from None
    except PayloadLate as late:
        _refuse_lost(settings, late.pointer)
        raise
    finally:
        payloads.close()
        consumer.close()


def _refuse_lost(settings: KafkaSettings, pointer: Pointer) -> None:
    """Ask all brokers whether a payload is lost, as a replica's reader does. On a thread of its own, without a loop."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, refuse_lost_payload(settings, pointer)).result()


def _merged(stored: Stretch, payloads: Payloads) -> Iterator[Stretch]:
    """The same records with payloads in place of pointers, in as many stretches as keep each below BATCH_BYTES."""
    if all(value is None or pointer_in(value) is None for value in stored.values):
        yield stored
        return
    begin, size, values = 0, 0, list[bytes | None]()
    for position, value in enumerate(stored.values):
        values.append(None if value is None else _record(value, payloads))
        size += len(values[-1] or b"")
        if size >= BATCH_BYTES or position + 1 == len(stored.values):
            yield _part(stored, begin, values)
            begin, size, values = position + 1, 0, []


def _record(value: bytes, payloads: Payloads) -> bytes:
    """The record in place of a stored value; waits until a late payload is an error."""
    pointer, record = pointer_in(value), None
    while pointer is not None and record is None:
        record = payloads.record(value, pointer, _POLL_S, lambda: True)
    return value if record is None else record


def _part(stored: Stretch, begin: int, values: list[bytes | None]) -> Stretch:
    part = slice(begin, begin + len(values))
    return Stretch(stored.first_offset + begin, stored.times_ms[part], stored.keys[part], values, stored.headers[part])


def _take(consumer: Consumer, count: int) -> list[Message]:
    """Up to `count` records: those that are there already, or the first that comes within a moment."""
    taken = consumer.consume(count, 0) or consumer.consume(1, _POLL_S)
    found = []
    for message in taken:
        error = message.error()
        if error is None:
            found.append(message)
        elif not passes_by_itself(error):
            raise KafkaException(error)
    return found


def _stretch(messages: list[Message], first: int) -> Stretch:
    offsets = [message.offset() for message in messages]
    if offsets != list(range(first, first + len(messages))):
        raise LogRefused(f"the log goes on at offset {offsets[0]} to {offsets[-1]}, but {first} is next")
    return Stretch(
        first,
        [message.timestamp()[1] for message in messages],
        [message.key() for message in messages],
        [message.value() for message in messages],
        [_headers(message) for message in messages],
    )


def _headers(message: Message) -> list[Header] | None:
    """The headers of a message; None if it has none, as in Spark's connector."""
    found: Any = message.headers()
    return found or None
