"""Reads the payloads that pointers in the log name. Blocks: for the thread of a reader, or a job.

Each partition of payloads has a consumer of its own, opened for its first pointer. It reads ahead, so a log full of
pointers is read in stretches, and what is fetched ahead stays bounded for each.

A payload was acknowledged before its pointer was written. So it may come late for a reader, and is never missing: one
that does not come is waited for, and one that cannot come ends the reader.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from replica.log.kafka.librdkafka import (
    connect,
    consumer_config,
    error_in,
    offset_is_gone,
    passes_by_itself,
    says_no_topic,
)
from replica.log.kafka.pointers import Pointer, merged, name_payload, payload_topic
from replica.log.kafka.settings import KafkaSettings
from replica.notary.codes import Code
from replica.notary.errors import LogRefused, LogUnavailable

PAYLOAD_LATE_MAX_S = 10.0  # the reader fails, and another one may be opened, when a payload is not there by then
READ_AHEAD_MAX_KIB = 4_096  # of each partition
SKIP_MAX = 1_000  # payloads without a pointer that are read over; past it, the consumer goes to the offset
_POLL_MAX_S = 0.02
_LOOK_AGAIN_S = 0.1
_WATERMARKS_MAX_S = 0.5


class PayloadLate(LogUnavailable):
    """A payload is not there, and brokers do not say that it is gone. Whether it is lost can be asked of all."""

    def __init__(self, detail: str, pointer: Pointer) -> None:
        super().__init__(detail)
        self.pointer = pointer


class Payloads:
    """The payloads of one log, for one thread."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._partitions: dict[int, _Partition] = {}
        self._late_since_s: float | None = None

    def record(self, value: bytes, pointer: Pointer, wait_s: float, may_wait: Callable[[], bool]) -> bytes | None:
        """The record in place of `value`, a pointer; None if its payload does not come within `wait_s`.

        Raises LogRefused (LOG_PAYLOAD_MISSING) when the payload is gone or another one; PayloadLate when it was asked
        for over PAYLOAD_LATE_MAX_S, or its topic is unknown; and LogUnavailable.
        """
        try:
            payload = self._of(pointer.partition).get(pointer.offset, wait_s, may_wait)
        except _NoTopic as error:
            raise PayloadLate(error.detail, pointer) from None
        if payload is None:
            self._refuse_late(pointer)
            return None
        self._late_since_s = None
        return merged(value, pointer, payload, payload_topic(self._settings.topic))

    def close(self) -> None:
        """Close the consumers. May be repeated."""
        while self._partitions:
            self._partitions.popitem()[1].close()

    def _refuse_late(self, pointer: Pointer) -> None:
        now_s = monotonic()
        if self._late_since_s is None:
            self._late_since_s = now_s
        elif now_s - self._late_since_s > PAYLOAD_LATE_MAX_S:
            where = name_payload(payload_topic(self._settings.topic), pointer.partition, pointer.offset)
            raise PayloadLate(f"{where} is not there yet", pointer)

    def _of(self, partition: int) -> _Partition:
        if partition not in self._partitions:
            self._partitions[partition] = _Partition(self._settings, partition)
        return self._partitions[partition]


class _NoTopic(LogUnavailable):
    """A broker knows no such topic or partition: one that has just started may not know it yet."""


class _Partition:
    """One partition of payloads, read forward from where it was last asked."""

    def __init__(self, settings: KafkaSettings, partition: int) -> None:
        self._at = TopicPartition(payload_topic(settings.topic), partition)
        ahead_kib = min(READ_AHEAD_MAX_KIB, settings.read_ahead_mib * 1_024)
        bounds = {"queued.max.messages.kbytes": ahead_kib, "enable.sparse.connections": True}
        self._lost: KafkaError | None = None  # the client has no broker left
        self._consumer = connect(Consumer, consumer_config(settings) | bounds | {"error_cb": self._note_lost})
        self._next: int | None = None

    def get(self, offset: int, wait_s: float, may_wait: Callable[[], bool]) -> bytes | None:
        """The payload at this offset; None if it does not come within `wait_s`."""
        if self._next is None or not self._next <= offset <= self._next + SKIP_MAX:
            self._seek(offset)
        until_s = monotonic() + wait_s
        while True:
            message = self._consumer.poll(max(0.0, min(until_s - monotonic(), _POLL_MAX_S)))
            payload = None if message is None else self._take(message, offset)
            if payload is not None:
                return payload
            if self._lost is not None:
                raise self._unavailable(self._lost, offset)
            if monotonic() >= until_s or not may_wait():
                return None

    def close(self) -> None:
        """Stop fetching."""
        self._consumer.close()

    def _take(self, message: Message, offset: int) -> bytes | None:
        if (error := message.error()) is not None:
            self._judge(error, offset)
            return None
        found = message.offset() or 0
        self._next = found + 1
        if found > offset:
            self._next = None
            raise LogRefused(f"{self._name(offset)} is gone: the next is {found}", Code.LOG_PAYLOAD_MISSING)
        return (message.value() or b"") if found == offset else None

    def _judge(self, error: KafkaError, offset: int) -> None:
        """Return if the payload may still come."""
        if passes_by_itself(error):
            return
        if not offset_is_gone(error):
            self._next = None
            raise self._unavailable(error, offset)
        try:
            first, _ = self._consumer.get_watermark_offsets(self._at, timeout=_WATERMARKS_MAX_S)
        except KafkaException as exception:
            raise self._unavailable(error_in(exception), offset) from None
        if offset < first:
            self._next = None  # whoever asks again gets the answer again: the client says it once
            raise LogRefused(f"{self._name(offset)} is gone: the first is {first}", Code.LOG_PAYLOAD_MISSING)
        self._consumer.poll(_LOOK_AGAIN_S)  # the leader does not have it yet, or is none any more
        self._seek(offset)

    def _unavailable(self, error: KafkaError, offset: int) -> LogUnavailable:
        """Also for a topic that is unknown or another one: brokers that start may not know it yet, digests tell."""
        kind = _NoTopic if says_no_topic(error) else LogUnavailable
        return kind(f"reading {self._name(offset)}: {error.name()}, {error.str()}")

    def _seek(self, offset: int) -> None:
        self._next = offset
        self._consumer.assign([TopicPartition(self._at.topic, self._at.partition, offset)])

    def _note_lost(self, error: KafkaError) -> None:
        if not passes_by_itself(error):
            self._lost = error

    def _name(self, offset: int) -> str:
        return name_payload(self._at.topic, self._at.partition, offset)
