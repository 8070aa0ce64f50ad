"""The request log on Kafka, through librdkafka: one partition gives the order, no transactions, no consumer group.

The event loop never waits for a broker. librdkafka sends the writer's records from its own threads. The reader has one
thread that waits for records. Clients are opened and closed in threads as well.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from replica.log.interface import LogRecords, RoundTrip
from replica.log.kafka.agreement import agreed_end_offset, refuse_lost_payload
from replica.log.kafka.contract import all_violations, losses, refuse_lost, refuse_unsafe
from replica.log.kafka.librdkafka import (
    PARTITION,
    connect,
    consumer_config,
    error_in,
    meaning_of,
    ms,
    offset_is_gone,
    passes_by_itself,
    producer_config,
)
from replica.log.kafka.payload_writer import PayloadWriter, is_large, open_payload_writer
from replica.log.kafka.payloads import PayloadLate, Payloads
from replica.log.kafka.pointers import pointer_in
from replica.log.kafka.round_trips import STATISTICS_EVERY_S, RoundTrips
from replica.log.kafka.settings import CLOSE_MAX_S, KafkaSettings
from replica.log.kafka.topic import TopicAdmin
from replica.notary.errors import LogLeaderChanged, LogRefused, LogTruncated, LogUnavailable, NotaryError
from replica.notary.records import check_sizes

log = structlog.get_logger()

SERVE_EVERY_S = 0.05  # interval at which a writer's delivery reports are processed
LOG_EVERY_S = 1.0  # failed appends are counted, and logged at most this often
POLL_MAX_S = 0.02  # the longest single wait of the reader's thread, and so of a close for that thread

IDENTITY_WAIT_S = 0.5  # how long `end_offset` waits for the topic's id, in addition to the offset
IDENTITY_AGE_MAX_S = 30.0  # greatest age of the last confirmed topic id; a dead broker hides the id for up to 15 s

# One request on its way at a time: what is appended meanwhile goes together, so that batches grow with the load while a
# lone record waits for nothing, and a retry cannot overtake. Safety rests on none of this.
_ORDERED = {"max.in.flight.requests.per.connection": 1, "delivery.report.only.error": True}
_PURGED = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})


class KafkaLog:
    """A `RequestLog` on one Kafka topic. Connects on the first question, so a replica can stay away from Kafka."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._admin = TopicAdmin(settings)
        self._topic_id: str | None = None
        self._confirmed_at_s = float("-inf")
        self._open: set[KafkaReader | KafkaWriter] = set()
        self.round_trips = RoundTrips()  # of the writer that is open
        if settings.single_broker:
            log.warning(
                "single_broker_log",
                topic=settings.topic,
                detail="development only: acknowledged records are lost with this broker's disk",
            )

    @property
    def answer_times(self) -> Mapping[str, RoundTrip]:
        """See `RequestLog.answer_times`: of each broker, by its id."""
        return self.round_trips.by_broker

    async def check(self) -> str:
        """Check the topics' contract (replica/log/kafka/contract.py) and return the id of the log's.

        Later readers rely on the id. Raises LogRefused (TOPIC_UNSAFE), which names every violation; LogMissing;
        LogTruncated when the first records are gone, LogRefused (LOG_PAYLOAD_MISSING) when first payloads are; and
        LogUnavailable.
        """
        found = await self._admin.topics()
        refuse_unsafe(found, self._settings)
        refuse_lost(found, self._settings)
        self._topic_id = found.log.topic_id
        self._confirmed_at_s = asyncio.get_running_loop().time()
        return found.log.topic_id

    async def hazards(self) -> Sequence[str]:
        """See `RequestLog.hazards`."""
        found = await self._admin.topics()
        return all_violations(found, self._settings) + losses(found, self._settings)

    async def end_offset(self) -> int:
        """The offset that the next record will get.

        Raises LogUnavailable, and LogRefused when the topic was deleted or created again since it was checked. A reader
        cannot notice that by itself if the new topic has more records than the old one.
        """
        await self._confirm_lately()
        return await self._admin.end_offset()

    async def agreed_end_offset(self) -> int:
        """See `RequestLog.agreed_end_offset`: asks every broker for the leader, over new connections."""
        await self._confirm_identity()
        return await agreed_end_offset(self._settings)

    async def open_reader(self, start_offset: int) -> KafkaReader:
        """A reader from `start_offset` on. Raises LogTruncated when that lies after the end or was cut off."""
        await self._confirm_identity()
        term = await self._require_offset(start_offset)
        reader = KafkaReader(self._settings, start_offset, self._confirm_failure, self._open.discard, term)
        self._open.add(reader)
        try:
            await reader.start()
        except BaseException:
            await reader.close()
            raise
        return reader

    async def open_writer(self) -> KafkaWriter:
        """A writer that knows the topics' leaders, so that the first append is sent at once. Raises LogUnavailable."""
        failures = DeliveryFailures()
        payloads = await open_payload_writer(self._settings)
        try:
            producer = await asyncio.to_thread(_connect_producer, self._settings, failures, self.round_trips)
        except BaseException:
            if payloads is not None:
                await payloads.close()
            raise
        writer = KafkaWriter(producer, self._settings.topic, failures, self._forget_writer, payloads)
        self._open.add(writer)
        return writer

    async def close(self) -> None:
        """Close every reader, writer and connection. May be repeated; what is opened later connects again."""
        await asyncio.gather(*[handle.close() for handle in self._open])
        await self._admin.close()

    async def _require_offset(self, offset: int) -> int:
        """Raise LogTruncated unless a reader may start there. The brokers must agree on an end that is too low.

        Returns the leader's epoch: what a later leader appends has a higher one."""
        (end, term), first = await self._admin.end_and_term(), await self._admin.first_offset()
        if offset > end:
            end = await self.agreed_end_offset()
        if not first <= offset <= end:
            raise LogTruncated(f"the log has offsets from {first} to below {end}, asked for is {offset}")
        return term

    async def _confirm_failure(self, failure: NotaryError, next_offset: int) -> None:
        """Raise the true cause of a reader's failure, where it differs from the apparent one.

        When the leader does not answer, the topic may be the cause. And an offset that the leader does not have may be
        missing only on that broker, because it is cut off from its peers. A payload that stays away may be lost.
        """
        await self._confirm_identity()
        if isinstance(failure, PayloadLate):
            await refuse_lost_payload(self._settings, failure.pointer)
        if isinstance(failure, LogTruncated):
            await self._require_offset(next_offset)
            raise LogUnavailable(f"{failure.detail}; but other brokers have that offset")

    def _forget_writer(self, writer: KafkaWriter) -> None:
        self._open.discard(writer)
        self.round_trips.clear()

    async def _confirm_identity(self) -> None:
        topic_id = await self._admin.topic_id()
        if self._topic_id is None:
            self._topic_id = topic_id
        if topic_id != self._topic_id:
            raise LogRefused(
                f"topic {self._settings.topic} was created anew: its id is {topic_id}, it was {self._topic_id}"
            )
        self._confirmed_at_s = asyncio.get_running_loop().time()

    async def _confirm_lately(self) -> None:
        """Confirm the topic's identity. Tolerates no answer for `IDENTITY_AGE_MAX_S`, but never a different identity.

        librdkafka asks one broker, which it takes for the controller. While that broker is dead, the partition's leader
        may be well. A reader or writer must not be given up for a question that other brokers could answer.
        """
        try:
            async with asyncio.timeout(IDENTITY_WAIT_S):
                await self._confirm_identity()
        except (TimeoutError, LogUnavailable):
            age_s = asyncio.get_running_loop().time() - self._confirmed_at_s
            if age_s > IDENTITY_AGE_MAX_S:
                raise LogUnavailable(f"no broker has given the id of topic {self._settings.topic} lately") from None


class KafkaReader:
    """Reads the partition from one offset on, one read at a time. A failure is final: open another reader."""

    def __init__(
        self,
        settings: KafkaSettings,
        start_offset: int,
        confirm_failure: Callable[[NotaryError, int], Awaitable[None]],
        on_close: Callable[[KafkaReader], None],
        term: int,
    ) -> None:
        """`term`: the leader's epoch when it was opened. It ends at the first record of a later leader, which may have
        a log that was cut and grew again."""
        self._settings = settings
        self._term = term
        self._next = start_offset  # this, the consumer and the failure belong to the thread
        self._failure: NotaryError | None = None
        self._confirm_failure = confirm_failure
        self._on_close = on_close
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="log-reader")
        self._consumer: Consumer | None = None
        self._payloads = Payloads(settings)
        self._unmerged: deque[tuple[int, bytes]] = deque()  # a pointer whose payload is awaited, and what follows
        self._fetching: asyncio.Future[LogRecords] | None = None
        self._ahead: LogRecords = []
        self._closing: asyncio.Future[None] | None = None

    async def start(self) -> None:
        """Begin to fetch. Raises ConfigError."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._connect)

    async def read(self, max_records: int, wait_s: float) -> LogRecords:
        """The next records; see `LogReader.read`. The next read returns what a cancelled read has fetched."""
        if not self._ahead and self._closing is None:
            if self._fetching is None:
                loop = asyncio.get_running_loop()
                self._fetching = loop.run_in_executor(self._thread, self._fetch, max_records, wait_s)
            await asyncio.wait([self._fetching])  # not awaited itself: that would cancel it with this read
            self._ahead, self._fetching = self._fetching.result(), None
        if self._closing is not None:
            raise LogUnavailable("the reader is closed")
        if not self._ahead and self._failure is not None:
            await self._confirm_failure(self._failure, self._next)
            raise self._failure
        records, self._ahead = self._ahead[:max_records], self._ahead[max_records:]
        return records

    async def close(self) -> None:
        """Stop reading, within milliseconds whatever the brokers do; a read in progress ends. May be repeated."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().run_in_executor(self._thread, self._disconnect)
            self._thread.shutdown(wait=False)  # ends the thread once it has disconnected
            self._on_close(self)
        await _wait_closed(self._closing, "reader")

    # ---- in the reader's thread ----

    def _connect(self) -> None:
        self._consumer = connect(Consumer, consumer_config(self._settings) | {"error_cb": self._note_failure})
        self._consumer.assign([TopicPartition(self._settings.topic, PARTITION, self._next)])

    def _disconnect(self) -> None:
        self._payloads.close()
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _fetch(self, max_records: int, wait_s: float) -> LogRecords:
        until_s = monotonic() + wait_s
        if not self._unmerged:
            records = self._fetch_stored(max_records, wait_s)
            if all(pointer_in(value) is None for _, value in records):
                return records
            self._unmerged.extend(records)
        return self._merge(max_records, until_s)

    def _fetch_stored(self, max_records: int, wait_s: float) -> LogRecords:
        """The next values as the topic has them."""
        records: list[tuple[int, bytes]] = []
        for message in self._take(max_records, wait_s):
            if (error := message.error()) is not None:
                self._note_failure(error)
            elif message.offset() != self._next:
                self._note_gap(message.offset())
            elif (message.leader_epoch() or 0) > self._term:
                self._note_leader()
            elif self._failure is None:
                records.append((self._next, message.value() or b""))
                self._next += 1
        return records

    def _merge(self, max_records: int, until_s: float) -> LogRecords:
        """Records up to the first payload that is late, as many as fit what is read ahead of the reader."""
        records: list[tuple[int, bytes]] = []
        left_bytes = self._settings.read_ahead_mib * 1_048_576
        while self._unmerged and len(records) < max_records and left_bytes > 0 and self._closing is None:
            offset, value = self._unmerged[0]
            record = self._merged(value, until_s, have_some=bool(records))
            if record is None:
                break
            records.append((offset, record))
            left_bytes -= len(record)
            self._unmerged.popleft()
        return records

    def _merged(self, value: bytes, until_s: float, have_some: bool) -> bytes | None:
        """The record in place of a stored value; None if its payload is late, or the reader has failed."""
        if (pointer := pointer_in(value)) is None:
            return value
        left_s = max(0.0, until_s - monotonic())
        wait_s = min(left_s, POLL_MAX_S) if have_some else left_s
        try:
            return self._payloads.record(value, pointer, wait_s, lambda: self._closing is None)
        except (LogRefused, LogUnavailable) as failure:
            if not have_some:  # else the next read meets it again
                self._failure = failure
            return None

    def _take(self, max_records: int, wait_s: float) -> list[Message]:
        """Wait for one message, then take what is there already. `consume` alone would wait for the whole number."""
        if self._consumer is None or self._failure is not None:
            return []
        until_s = monotonic() + wait_s
        first = self._consumer.poll(min(wait_s, POLL_MAX_S))
        while first is None and self._may_wait() and (left_s := until_s - monotonic()) > 0:
            first = self._consumer.poll(min(left_s, POLL_MAX_S))
        if first is None or max_records == 1:
            return [] if first is None else [first]
        return [first, *self._consumer.consume(max_records - 1, 0)]

    def _note_failure(self, error: KafkaError) -> None:
        """Called with an error instead of a record, and by the client when it has lost every broker."""
        if self._failure is None and not passes_by_itself(error):
            meaning = meaning_of(error, f"reading on from offset {self._next}")
            self._failure = LogTruncated(meaning.detail) if offset_is_gone(error) else meaning

    def _note_gap(self, offset: int | None) -> None:
        if self._failure is None:
            self._failure = LogRefused(f"the log goes on at offset {offset}, but {self._next} is next")

    def _note_leader(self) -> None:
        if self._failure is None:
            self._failure = LogLeaderChanged(f"offset {self._next} was appended by another leader of the log")

    def _may_wait(self) -> bool:
        return self._failure is None and self._closing is None


class KafkaWriter:
    """Appends through a plain producer. An idempotent one may be unable to send for half a second after its start.

    The void rule makes that safe: a record that the client sends twice, late or out of order has its sequence number.
    """

    def __init__(
        self,
        producer: Producer,
        topic: str,
        failures: DeliveryFailures,
        on_close: Callable[[KafkaWriter], None],
        payloads: PayloadWriter | None = None,
    ) -> None:
        """`payloads`: writes large requests apart; None: they go to the topic whole."""
        self._producer: Producer | None = producer
        self._topic = topic
        self._failures = failures
        self._told_count = 0
        self._log_from_s = 0.0
        self._on_close = on_close
        self._closing: asyncio.Future[Any] | None = None
        self._payloads = payloads
        if payloads is not None:
            payloads.start(self._settle)
        self._timer = asyncio.get_running_loop().call_later(SERVE_EVERY_S, self._serve)

    @property
    def failed_count(self) -> int:
        """Records that the client gave up; each may still appear in the log. Does not count what `close` purges."""
        return self._failures.count

    @property
    def has_ended(self) -> bool:
        """See `LogWriter.has_ended`."""
        return self._producer is None

    @property
    def is_connected(self) -> bool:
        """See `LogWriter.is_connected`: librdkafka connects by itself."""
        return self._producer is not None

    def append(self, value: bytes) -> None:
        """Hand a record to librdkafka; see `LogWriter.append`. Raises InvariantBroken past RECORD_MAX_BYTES."""
        producer = self._open_for([value])
        if self._payloads is not None and is_large(value):
            self._payloads.write(value)
        else:
            self._produce(producer, value)

    def _produce(self, producer: Producer, value: bytes) -> None:
        try:
            try:
                producer.produce(self._topic, value, partition=PARTITION)
            except BufferError:
                producer.poll(0)  # records with unprocessed reports count as queued
                producer.produce(self._topic, value, partition=PARTITION)
        except BufferError:
            raise LogUnavailable("the queue of records that no broker has acknowledged is full") from None
        except KafkaException as exception:
            raise LogUnavailable(f"appending: {error_in(exception).str()}") from None

    def append_all(self, values: Sequence[bytes]) -> None:
        """See `LogWriter.append_all`. One by one, librdkafka sends the first alone, the rest in several requests."""
        producer = self._open_for(values)
        if self._payloads is not None:
            for value in filter(is_large, values):  # first, because their pointers wait for them
                self._payloads.write(value)
            values = [value for value in values if not is_large(value)]
        self._produce_all(producer, values)

    def _produce_all(self, producer: Producer, values: Sequence[bytes]) -> None:
        messages = [{"value": value} for value in values]
        try:
            producer.produce_batch(self._topic, messages, partition=PARTITION)
        except KafkaException as exception:
            raise LogUnavailable(f"appending: {error_in(exception).str()}") from None
        for message in messages:
            if "_error" in message:  # for instance, the queue was full
                self._produce(producer, message["value"])

    def _settle(self, pointers: Sequence[bytes], lost: Sequence[KafkaError]) -> None:
        """Append pointers whose payloads were acknowledged; a lost payload is a lost append. Nothing once closed."""
        if self._producer is None:
            return
        for error in lost:
            self._failures.note(error)
        try:
            self._produce_all(self._producer, pointers)
        except LogUnavailable as failure:  # nobody waits here who could be told: it counts as given up
            self._failures.add(len(pointers), failure.detail)

    def _open_for(self, values: Sequence[bytes]) -> Producer:
        if self._producer is None:
            raise LogUnavailable("the writer is closed")
        check_sizes(values)
        return self._producer

    async def close(self) -> None:
        """Purge what is queued and in flight, and close without waiting for a broker. May be repeated."""
        if self._closing is None:
            self._timer.cancel()
            self._tell_failures()
            dropped, self._producer = [self._producer], None
            parts = [asyncio.to_thread(_purge_and_drop, dropped)]
            if self._payloads is not None:
                parts.append(self._payloads.close())
            self._closing = asyncio.gather(*parts)
            self._on_close(self)
        await _wait_closed(self._closing, "writer")

    def _serve(self) -> None:
        """Process delivery reports, which frees their places in the queue. Only failures reach Python code."""
        if self._producer is not None:
            loop = asyncio.get_running_loop()
            self._producer.poll(0)
            if loop.time() >= self._log_from_s:
                self._tell_failures()
                self._log_from_s = loop.time() + LOG_EVERY_S
            self._timer = loop.call_later(SERVE_EVERY_S, self._serve)

    def _tell_failures(self) -> None:
        new, self._told_count = self._failures.count - self._told_count, self._failures.count
        if new:
            log.warning("log_append_failed", count=new, detail=self._failures.last)


class DeliveryFailures:
    """Counts the records that the client gave up, except for purged ones."""

    def __init__(self) -> None:
        self.count = 0
        self.last = ""

    def __call__(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self.note(error)

    def note(self, error: KafkaError) -> None:
        """Count one record that was not delivered, for this reason."""
        if error.code() not in _PURGED:
            self.add(1, f"{error.name()}, {error.str()}")

    def add(self, count: int, detail: str) -> None:
        """Count records that were given up."""
        self.count += count
        self.last = detail


def _connect_producer(settings: KafkaSettings, failures: DeliveryFailures, round_trips: RoundTrips) -> Producer:
    """A producer that knows the partition's leader. Blocks for up to `connect_timeout_s`."""
    statistics = {"stats_cb": round_trips, "statistics.interval.ms": ms(STATISTICS_EVERY_S)}
    producer = connect(Producer, producer_config(settings) | _ORDERED | statistics | {"on_delivery": failures})
    doing = f"opening a writer to topic {settings.topic}"
    try:
        topic = producer.list_topics(settings.topic, timeout=settings.connect_timeout_s).topics[settings.topic]
    except KafkaException as exception:
        raise meaning_of(error_in(exception), doing) from None
    if topic.error is not None:
        raise meaning_of(topic.error, doing)
    if topic.partitions[PARTITION].leader < 0:
        raise LogUnavailable(f"{doing}: its partition has no leader")
    return producer


def _purge_and_drop(dropped: list[Producer | None]) -> None:
    """Drop the last reference to a producer. Call it in a thread, because the drop waits for the client's threads.

    `Producer.close` would wait without limit for the acknowledgement of every record.
    """
    producer = dropped.pop()
    if producer is not None:
        producer.purge()
        producer.poll(0)  # releases what the client keeps for each purged record


async def _wait_closed(closing: asyncio.Future[Any], what: str) -> None:
    done, _ = await asyncio.wait([closing], timeout=CLOSE_MAX_S)
    if not done:
        log.warning("log_close_slow", what=what, waited_s=CLOSE_MAX_S)
