"""A topic from an archive: the same records at the same offsets, written by one ordered producer.

Not a Spark job: tasks write at the same time, and at least once. Nothing but this producer may write to the topic; each
acknowledgement must name the very offset that the record had, and in the end every record is read back and compared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain
from typing import Any

import msgspec
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from pipeline.archive.manifest import Manifest
from pipeline.archive.restore_plan import Check, Facts, RestorePlan, Until, decide, last_offset
from pipeline.archive.segment import DIGEST_BYTES, LogRecord, archived_digest, digests_path, read_segment, records_of
from pipeline.archive.verify import verify_archive
from pipeline.sources.kafka_python import read_stretch
from pipeline.sources.topic import TopicView, look_at
from replica.log.kafka.librdkafka import TopicMissing, client_config, connect, error_in, meaning_of
from replica.log.kafka.settings import KafkaSettings
from replica.log.kafka.topic import MESSAGE_MAX_BYTES, PARTITION, create_topic
from replica.notary.errors import LogRefused, RestoreRefused
from replica.notary.salvage import Salvage
from replica.store.archive_head import ArchiveHead

TIME_SETTING = "message.timestamp.type"
KEEP_TIMES, BROKER_TIMES = "CreateTime", "LogAppendTime"
REPORT_TAG = b"notary/restore/1"
_QUEUE_RECORDS = 50_000
_FLUSH_MAX_S = 60.0

OnRecord = Callable[[int], None]


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What a restore did, signed by the archive's key: `signature` is over REPORT_TAG and this with an empty one.

    `archived_root` and `restored_root`: SHA-256 over the digests of records 0..last, of the archive and as read back.
    `salvage`: digest of the salvage that the last of them, lost records, name; absent if there are none.
    """

    archive_id: str
    manifest_head: str
    manifest_lines: int
    topic: str
    topic_id: str
    bootstrap_servers: str
    last: int
    written_from: int
    archived_root: str
    restored_root: str
    started_us: int
    finished_us: int
    checks: list[Check]
    salvage: str | msgspec.UnsetType = msgspec.UNSET  # absent in a report without one, as before there were any
    signature: str = ""

    def signed_by(self, sign: Callable[[bytes], bytes]) -> Evidence:
        """The same with the signature."""
        return msgspec.structs.replace(self, signature=sign(REPORT_TAG + msgspec.json.encode(self)).hex())


def plan_restore(
    manifest: Manifest,
    public_key: bytes,
    target: KafkaSettings,
    until: Until,
    *,
    head: ArchiveHead | None = None,
    published: int | None = None,
    resume: bool = False,
    accept_loss: int | None = None,
    salvage: Salvage | None = None,
) -> RestorePlan:
    """Look at archive and target, and decide. Writes nothing. Raises LogUnavailable.

    `head`, `published`: what the shared database knows, None if it was not asked.
    """
    verified = verify_archive(manifest.folder, public_key, lambda archive_id: None, last=until.offset)
    findings = [f"offset {finding.offset}: {finding.problem}" for finding in verified.findings]
    last = -1 if findings else last_offset(manifest, until)
    view, broken = _target(target)
    same = None
    end = (last if salvage is None else salvage.last) + 1
    if resume and view is not None and not findings and view.first == 0 and view.end <= end:
        same = compare(manifest, target, view.end, salvage).first_difference is None
    facts = Facts(findings, head, view, broken, same, published)
    return decide(manifest, target.topic, last, facts, resume=resume, accept_loss=accept_loss, salvage=salvage)


def _target(target: KafkaSettings) -> tuple[TopicView | None, str]:
    try:
        view = look_at(target, any_contract=True)
    except TopicMissing:
        return None, ""
    try:
        look_at(target)
    except LogRefused as error:
        return view, error.detail
    return view, ""


def run_restore(
    manifest: Manifest, plan: RestorePlan, target: KafkaSettings, now_us: Callable[[], int], on_record: OnRecord
) -> Evidence:
    """Carry a plan out, and read everything back. `on_record` is told how many records are in the topic.

    Raises RestoreRefused when the plan was refused, or a record came to lie at another offset than its own: then the
    topic must be deleted. Raises LogUnavailable when the brokers do not answer; `--resume` goes on afterwards.
    """
    plan.refuse()
    started_us = now_us()
    topic_id = asyncio.run(create_topic(target))
    _set_times(target, KEEP_TIMES)
    _produce(manifest, plan, target, on_record)
    _set_times(target, BROKER_TIMES)
    compared = compare(manifest, target, plan.end, plan.salvage)
    if compared.first_difference is not None:
        raise RestoreRefused(f"the record at offset {compared.first_difference} is not the archive's: delete the topic")
    end = look_at(target).end
    if end != plan.end:
        raise RestoreRefused(f"somebody else writes to the topic: it ends at {end}, restored was up to {plan.end - 1}")
    head = manifest.head
    return Evidence(
        archive_id=plan.archive_id,
        manifest_head=head.hash,
        manifest_lines=head.lines,
        topic=target.topic,
        topic_id=topic_id,
        bootstrap_servers=target.bootstrap_servers,
        last=plan.end - 1,
        written_from=plan.first,
        archived_root=compared.archived_root,
        restored_root=compared.restored_root,
        started_us=started_us,
        finished_us=now_us(),
        checks=plan.checks,
        salvage=msgspec.UNSET if plan.salvage is None else plan.salvage.digest.hex(),
    )


@dataclass(frozen=True, slots=True)
class Comparison:
    """Records of a topic beside those of an archive: the first offset at which they differ, and the roots of both."""

    first_difference: int | None
    archived_root: str
    restored_root: str


def compare(manifest: Manifest, target: KafkaSettings, end: int, salvage: Salvage | None = None) -> Comparison:
    """Read all records of a topic below `end` and compare each with the archive's, its offset and time included.

    Behind the archive's end it is compared with the lost records of the salvage.
    """
    different, archived_root, restored_root = None, sha256(), sha256()
    for record, (offset, expected) in zip(_topic_records(target, end), _expected(manifest, end, salvage), strict=True):
        digest = archived_digest(record)
        archived_root.update(expected)
        restored_root.update(digest)
        if different is None and digest != expected:
            different = offset
    return Comparison(different, archived_root.hexdigest(), restored_root.hexdigest())


def _produce(manifest: Manifest, plan: RestorePlan, target: KafkaSettings, on_record: OnRecord) -> None:
    acknowledged = _Acknowledgements(plan.first, on_record)
    producer = connect(Producer, _producer_config(target, acknowledged))
    try:
        lost = () if plan.salvage is None else lost_records(manifest, plan.salvage, plan.first)
        for record in chain(archived_records(manifest, plan.first, plan.last), lost):
            _send(producer, target.topic, record)
            acknowledged.refuse()
        producer.flush(_FLUSH_MAX_S)
    except KafkaException as exception:
        raise meaning_of(error_in(exception), f"writing to topic {target.topic}") from None
    finally:
        producer.purge()
        producer.flush(1.0)
    acknowledged.refuse()
    if acknowledged.following != plan.end:
        raise RestoreRefused(f"acknowledged up to {acknowledged.following - 1} of {plan.end - 1}: repeat with --resume")


class _Acknowledgements:
    """Each must name the offset behind the one before."""

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
        """Raise RestoreRefused once one of them did not."""
        if self._problem:
            raise RestoreRefused(self._problem)


def _producer_config(target: KafkaSettings, on_delivery: _Acknowledgements) -> dict[str, Any]:
    return client_config(target) | {
        "acks": "all",
        "enable.idempotence": True,  # in order, each once, while this producer lives
        "enable.gapless.guarantee": True,
        "linger.ms": 20,
        "compression.type": "none" if target.compression == "none" else target.compression,
        "message.max.bytes": MESSAGE_MAX_BYTES,
        "queue.buffering.max.messages": _QUEUE_RECORDS,
        "on_delivery": on_delivery,
    }


def _send(producer: Producer, topic: str, record: LogRecord) -> None:
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


def archived_records(manifest: Manifest, first: int, last: int) -> Iterator[LogRecord]:
    """The archive's records first..last. Raises SegmentDamaged."""
    for segment in manifest.segments:
        if segment.facts.last >= first and segment.facts.first <= last:
            for record in read_segment(manifest.segments_folder, segment.facts):
                if first <= record.offset <= last:
                    yield record


def lost_records(manifest: Manifest, salvage: Salvage, first: int = 0) -> Iterator[LogRecord]:
    """The lost records from offset `first` on. They carry the archive's last time, so that --resume finds the same."""
    last_ms = manifest.segments[-1].facts.last_ms if manifest.segments else 0
    for offset in range(max(first, salvage.first), salvage.last + 1):
        yield LogRecord(offset, last_ms, None, salvage.lost_record(offset))


def _expected(manifest: Manifest, end: int, salvage: Salvage | None) -> Iterator[tuple[int, bytes]]:
    yield from _archived(manifest, end)
    if salvage is not None:
        for record in lost_records(manifest, salvage):
            if record.offset < end:
                yield record.offset, archived_digest(record)


def _archived(manifest: Manifest, end: int) -> Iterator[tuple[int, bytes]]:
    """Offset and digest of every archived record below `end`; the files were verified before."""
    for segment in manifest.segments:
        facts = segment.facts
        raw = digests_path(manifest.segments_folder, facts.first, facts.last).read_bytes()
        for offset in range(facts.first, min(facts.last + 1, end)):
            at = (offset - facts.first) * DIGEST_BYTES
            yield offset, raw[at : at + DIGEST_BYTES]


def _topic_records(target: KafkaSettings, end: int) -> Iterator[LogRecord]:
    for batch in read_stretch(target, 0, end):
        yield from records_of(batch)


def _set_times(target: KafkaSettings, value: str) -> None:
    """Whether the topic keeps the times that records come with, or its brokers stamp them."""
    admin = connect(AdminClient, client_config(target))
    change = ConfigEntry(TIME_SETTING, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, target.topic, incremental_configs=[change])
    try:
        for future in admin.incremental_alter_configs([resource], request_timeout=target.answer_max_s).values():
            future.result(target.answer_max_s + 1)
    except KafkaException as exception:
        raise meaning_of(error_in(exception), f"setting {TIME_SETTING} of topic {target.topic}") from None
