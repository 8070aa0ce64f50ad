"""The writer of payloads and pointers over doubles of librdkafka's producers: order, bounds, losses, and the close."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from queue import Empty, Queue
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, Message, Producer

from replica.log.kafka import payload_writer
from replica.log.kafka.log import DeliveryFailures, KafkaWriter
from replica.log.kafka.payload_writer import LARGE_ABOVE_BYTES, PayloadWriter
from replica.log.kafka.pointers import Pointer, pointer_in
from replica.notary.errors import InvariantBroken, LogUnavailable
from replica.notary.records import RECORD_MAX_BYTES
from tests.waiting import eventually

WAIT_S = 5.0
PARTITIONS = 3


def request(number: int, size: int = LARGE_ABOVE_BYTES + 1) -> bytes:
    """What begins as a request of format 2, of `size` bytes."""
    head = b"\x9d\x01\x02" + number.to_bytes(8)
    return head + bytes(size - len(head))


class Report:
    """A delivery report of librdkafka."""

    def __init__(self, value: bytes, partition: int, offset: int) -> None:
        self._value, self._partition, self._offset = value, partition, offset

    def value(self) -> bytes:
        return self._value

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset


class PayloadProducer:
    """Takes payloads, and reports what the test tells it to, as `poll` does: in the caller's thread."""

    def __init__(self, room: int = 100) -> None:
        self.taken: list[tuple[int, bytes]] = []
        self.purged = False
        self._room = room
        self._on_delivery: Callable[[KafkaError | None, Message], None] | None = None
        self._reports: Queue[tuple[KafkaError | None, Report]] = Queue()

    def produce(
        self, topic: str, value: bytes, *, partition: int, on_delivery: Callable[[KafkaError | None, Message], None]
    ) -> None:
        assert topic == "log-payloads"
        if len(self.taken) >= self._room:
            raise BufferError
        self.taken.append((partition, value))
        self._on_delivery = on_delivery

    def acknowledge(self, number: int, offset: int) -> None:
        partition, value = self.taken[number]
        self._reports.put((None, Report(value, partition, offset)))

    def lose(self, number: int) -> None:
        partition, value = self.taken[number]
        self._reports.put((KafkaError(KafkaError._MSG_TIMED_OUT, "too late"), Report(value, partition, 9)))

    def poll(self, timeout: float) -> None:
        try:
            report = self._reports.get(timeout=timeout) if timeout else self._reports.get_nowait()
            while self._on_delivery is not None:
                self._on_delivery(report[0], cast("Message", report[1]))
                report = self._reports.get_nowait()
        except Empty:
            return

    def purge(self) -> None:
        self.purged = True
        for partition, value in self.taken:
            self._reports.put((KafkaError(KafkaError._PURGE_QUEUE, "purged"), Report(value, partition, -1001)))


class OrderedProducer:
    """The log's own topic: what was handed over, in order."""

    def __init__(self, room: int = 1_000) -> None:
        self.values: list[bytes] = []
        self._room = room

    def produce(self, topic: str, value: bytes, *, partition: int) -> None:
        assert (topic, partition) == ("log", 0)
        if len(self.values) >= self._room:
            raise BufferError
        self.values.append(value)

    def produce_batch(self, topic: str, messages: Sequence[dict[str, Any]], *, partition: int) -> None:
        for message in messages:
            try:
                self.produce(topic, message["value"], partition=partition)
            except BufferError:
                message["_error"] = "full"

    def poll(self, timeout: float) -> None:
        pass

    def purge(self) -> None:
        pass


class Written:
    """A writer over the two doubles."""

    def __init__(self, *, payload_room: int = 100, log_room: int = 1_000) -> None:
        self.payloads, self.log = PayloadProducer(payload_room), OrderedProducer(log_room)
        self.failures = DeliveryFailures()
        writer = PayloadWriter(cast("Producer", self.payloads), "log-payloads", PARTITIONS)
        self.writer = KafkaWriter(cast("Producer", self.log), "log", self.failures, lambda _: None, writer)

    @property
    def pointers(self) -> list[Pointer]:
        return [found for value in self.log.values if (found := pointer_in(value)) is not None]

    async def has(self, values: int, failed: int = 0) -> None:
        async def settled() -> bool:
            return (len(self.log.values), self.writer.failed_count) == (values, failed)

        await eventually(settled, WAIT_S)


async def test_a_pointer_comes_after_the_acknowledgement_and_names_its_payload() -> None:
    """Goal: a pointer always has its payload. Method: three payloads; nothing before the reports, which
    come out of order."""
    written, records = Written(), [request(number) for number in range(3)]
    written.writer.append_all(records)
    await asyncio.sleep(3 * payload_writer.POLL_MAX_S)
    assert written.log.values == []
    assert written.payloads.taken == list(enumerate(records))  # each partition in turn
    for count, number in enumerate((2, 0, 1), start=1):
        written.payloads.acknowledge(number, 70 + number)
        await written.has(values=count)
    size = LARGE_ABOVE_BYTES + 1
    assert written.pointers == [Pointer(at, 70 + at, size, sha256(records[at]).digest()) for at in (2, 0, 1)]
    await written.writer.close()


async def test_what_is_small_or_no_request_of_format_2_goes_straight_and_in_order() -> None:
    """Goal: barriers and signs of life wait for no payload. Method: the limit itself, other kinds of any size."""
    written = Written()
    straight = [
        request(1, LARGE_ABOVE_BYTES),
        b"\x97\x00" + bytes(9_000),  # a barrier
        b"\x9d\x01\x01" + bytes(9_000),  # what no format has
        b"\x95\x02\x02" + bytes(9_000),  # a sign of life
    ]
    written.writer.append(request(2))
    written.writer.append_all([straight[0], request(3), *straight[1:3]])
    written.writer.append(straight[3])
    assert written.log.values == straight
    assert [value for _, value in written.payloads.taken] == [request(2), request(3)]
    await written.writer.close()


async def test_a_lost_payload_is_a_lost_append() -> None:
    """Goal: no pointer to what may not be there, and the loss is counted. Method: two of four payloads lost, one of
    them by an acknowledgement that names no offset."""
    written = Written()
    written.writer.append_all([request(number) for number in range(4)])
    written.payloads.lose(0)
    written.payloads.acknowledge(1, 5)
    written.payloads.acknowledge(2, -1001)
    written.payloads.acknowledge(3, 6)
    await written.has(values=2, failed=2)
    assert [pointer.offset for pointer in written.pointers] == [5, 6]
    await written.writer.close()


async def test_what_waits_is_bounded() -> None:
    """Goal: a broker that acknowledges nothing costs bounded memory. Method: more payloads than the client takes."""
    written = Written(payload_room=2)
    written.writer.append(request(1))
    with pytest.raises(LogUnavailable, match="queue of payloads"):
        written.writer.append_all([request(2), request(3)])
    assert len(written.payloads.taken) == 2
    with pytest.raises(InvariantBroken):
        written.writer.append(request(4, RECORD_MAX_BYTES + 1))
    await written.writer.close()


async def test_a_pointer_that_finds_no_room_is_a_lost_append() -> None:
    """Goal: the loss is counted where nobody can be told. Method: the log's own queue is full when reports come."""
    written = Written(log_room=1)
    written.writer.append_all([b"small", request(1)])
    written.payloads.acknowledge(0, 0)
    await written.has(values=1, failed=1)
    await written.writer.close()


async def test_nothing_is_handed_over_after_the_close() -> None:
    """Goal: a writer that was closed writes nothing more. Method: acknowledge before, in and after the close; then
    append."""
    written = Written()
    written.writer.append_all([request(1), request(2)])
    closing = asyncio.ensure_future(written.writer.close())
    written.payloads.acknowledge(0, 0)
    await closing
    written.payloads.acknowledge(1, 1)
    await asyncio.sleep(3 * payload_writer.POLL_MAX_S)
    assert written.log.values == []
    assert written.payloads.purged
    assert written.writer.failed_count == 0  # what a close purges is not counted
    with pytest.raises(LogUnavailable):
        written.writer.append(request(3))
    await written.writer.close()


def test_splitting_is_off_unless_configured() -> None:
    """Goal: existing deployments write as before. Method: the default."""
    settings: Mapping[str, Any] = payload_writer.KafkaSettings.model_fields
    assert settings["payload_partitions"].default == 0
