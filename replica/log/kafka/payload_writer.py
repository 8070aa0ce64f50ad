"""Writes large requests to the topic of payloads, and hands over each one's pointer once its payload is acknowledged.

So a pointer in the log always has its payload, whatever ends in between. A payload whose pointer is never written does
no harm. Order among large requests, or between them and small ones, is not kept: nothing in the log relies on it.

A thread waits for delivery reports, because whoever polled for them now and then would delay each large request. The
client's own bounds hold for payloads as for records: `append_queue_max`, `append_queue_max_mib`, `append_timeout_s`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import cycle
from threading import Event, Thread

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from replica.log.kafka.librdkafka import connect, error_in, meaning_of, producer_config
from replica.log.kafka.pointers import may_be_split, payload_topic, pointer_to
from replica.log.kafka.settings import KafkaSettings
from replica.notary.codes import Code
from replica.notary.errors import LogRefused, LogUnavailable

LARGE_ABOVE_BYTES = 4_096
POLL_MAX_S = 0.02  # the longest single wait of the thread, and so of a close for it

OnSettled = Callable[[Sequence[bytes], Sequence[KafkaError]], None]
"""Takes the pointers of acknowledged payloads, and why others were given up."""


def is_large(record: bytes) -> bool:
    """Whether a record goes to the topic of payloads, where there is one."""
    return len(record) > LARGE_ABOVE_BYTES and may_be_split(record)


async def open_payload_writer(settings: KafkaSettings) -> PayloadWriter | None:
    """A writer that knows where its partitions are; None where payloads are not to be written apart.

    Raises LogUnavailable, and LogRefused (TOPIC_UNSAFE) when the topic has too few partitions.
    """
    if not settings.payload_partitions:
        return None
    return await asyncio.to_thread(_connect, settings)


class PayloadWriter:
    """Writes to each of `partitions` in turn. Used from the event loop, but for what its thread does."""

    def __init__(self, producer: Producer, topic: str, partitions: int) -> None:
        self._producer: Producer | None = producer
        self._topic = topic
        self._partitions = cycle(range(partitions))
        self._pointers: list[bytes] = []  # these two belong to the thread
        self._lost: list[KafkaError] = []
        self._stopping = Event()
        self._thread: Thread | None = None

    def start(self, on_settled: OnSettled) -> None:
        """Begin to serve delivery reports; `on_settled` is called in the event loop of the caller."""
        loop = asyncio.get_running_loop()
        self._thread = Thread(target=self._serve, args=(loop, on_settled), name="log-payloads", daemon=True)
        self._thread.start()

    def write(self, record: bytes) -> None:
        """Hand a record to librdkafka. Raises LogUnavailable when the bounded queue is full, and writes nothing."""
        if self._producer is None:
            raise LogUnavailable("the writer is closed")
        try:
            self._producer.produce(
                self._topic, record, partition=next(self._partitions), on_delivery=self._note_delivery
            )
        except BufferError:
            raise LogUnavailable("the queue of payloads that no broker has acknowledged is full") from None
        except KafkaException as exception:
            raise LogUnavailable(f"writing a payload: {error_in(exception).str()}") from None

    async def close(self) -> None:
        """Purge what is queued and in flight, and hand over nothing more. May be repeated."""
        self._stopping.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
        dropped, self._producer = [self._producer], None
        await asyncio.to_thread(_purge, dropped)

    # ---- in the thread ----

    def _serve(self, loop: asyncio.AbstractEventLoop, on_settled: OnSettled) -> None:
        while not self._stopping.is_set() and (producer := self._producer) is not None:
            producer.poll(POLL_MAX_S)  # calls _note_delivery for all reports that are there
            if (self._pointers or self._lost) and not self._stopping.is_set():
                with suppress(RuntimeError):  # the loop was closed, and so has nobody who could be told
                    loop.call_soon_threadsafe(on_settled, self._pointers, self._lost)
                self._pointers, self._lost = [], []

    def _note_delivery(self, error: KafkaError | None, message: Message) -> None:
        """Called by `poll`. An acknowledgement without an offset proves nothing."""
        offset, partition, record = message.offset(), message.partition(), message.value()
        if error is not None:
            self._lost.append(error)
        elif offset is None or offset < 0 or partition is None or record is None:
            self._lost.append(KafkaError(KafkaError._FAIL, "a payload was acknowledged without an offset"))
        else:
            self._pointers.append(pointer_to(record, partition, offset))


def _connect(settings: KafkaSettings) -> PayloadWriter:
    """Blocks for up to `connect_timeout_s`."""
    name, needed = payload_topic(settings.topic), settings.payload_partitions
    # As many requests on their way to a broker as there are partitions: what is appended meanwhile goes together.
    in_flight = {"max.in.flight.requests.per.connection": needed}
    producer, doing = connect(Producer, producer_config(settings) | in_flight), f"opening a writer to topic {name}"
    try:
        topic = producer.list_topics(name, timeout=settings.connect_timeout_s).topics[name]
    except KafkaException as exception:
        raise meaning_of(error_in(exception), doing) from None
    if topic.error is not None:
        raise LogUnavailable(meaning_of(topic.error, doing).detail)  # of replicas that run the contract is watched
    if len(topic.partitions) < needed:
        raise LogRefused(f"{doing}: it has {len(topic.partitions)} partitions of {needed}", Code.TOPIC_UNSAFE)
    return PayloadWriter(producer, name, needed)


def _purge(dropped: list[Producer | None]) -> None:
    """Drop the last reference to a producer: see `_purge_and_drop` of the log's writer."""
    producer = dropped.pop()
    if producer is not None:
        producer.purge()
        producer.poll(0)
