"""A topic from an archive: the same records at the same offsets, written by one ordered producer.

It is not a Spark job, because tasks write at the same time, and at least once. Only this producer may write to the
topic. Each acknowledgement must name the offset that the record had (`refill_log`). In the end every record is read
back and compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain, takewhile

import msgspec

from pipeline.archive.manifest import Manifest
from pipeline.archive.restore_plan import Check, Facts, RestorePlan, Until, decide, last_offset
from pipeline.archive.segment import DIGEST_BYTES, archived_digest, records_of
from pipeline.archive.verify import verify_archive
from pipeline.sources.stretch import read_stretch
from pipeline.sources.topic import TopicView, look_at
from replica.log.admin import StoredRecord
from replica.log.interface import LogMissing
from replica.log.open import refill_log
from replica.log.settings import LogSettings
from replica.notary.errors import LogRefused, RestoreRefused
from replica.notary.salvage import Salvage
from replica.store.archive_head import ArchiveHead

REPORT_TAG = b"notary/restore/1"

OnRecord = Callable[[int], None]


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What a restore did, signed by the archive's key: `signature` covers REPORT_TAG and this with an empty signature.

    `archived_root` and `restored_root`: SHA-256 over the digests of records 0..last, of the archive and as read back.
    `salvage`: digest of the salvage that the lost records at the end name; absent if there are none.
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
    target: LogSettings,
    until: Until,
    *,
    head: ArchiveHead | None = None,
    published: int | None = None,
    resume: bool = False,
    accept_loss: int | None = None,
    salvage: Salvage | None = None,
) -> RestorePlan:
    """Look at archive and target, and decide. Writes nothing. Raises LogUnavailable.

    `head`, `published`: what database or ledgers know, None if it was not asked.
    """
    verified = verify_archive(manifest.layout, public_key, lambda archive_id: None, last=until.offset)
    findings = [f"offset {finding.offset}: {finding.problem}" for finding in verified.findings]
    last = -1 if findings else last_offset(manifest, until)
    view, broken = _target(target)
    same = None
    end = (last if salvage is None else salvage.last) + 1
    if resume and view is not None and not findings and view.first == 0 and view.end <= end:
        same = compare(manifest, target, view.end, salvage).first_difference is None
    facts = Facts(findings, head, view, broken, same, published)
    return decide(manifest, target.label, last, facts, resume=resume, accept_loss=accept_loss, salvage=salvage)


def _target(target: LogSettings) -> tuple[TopicView | None, str]:
    try:
        view = look_at(target, any_contract=True)
    except LogMissing:
        return None, ""
    try:
        look_at(target)
    except LogRefused as error:
        return view, error.detail
    return view, ""


def run_restore(
    manifest: Manifest, plan: RestorePlan, target: LogSettings, now_us: Callable[[], int], on_record: OnRecord
) -> Evidence:
    """Carry a plan out, and read everything back. `on_record` gets the number of records in the topic.

    Raises RestoreRefused when the plan was refused, or a record was stored at another offset than its own: then the
    topic must be deleted. Raises LogUnavailable when the brokers do not answer; `--resume` goes on afterwards.
    """
    plan.refuse()
    started_us = now_us()
    lost = () if plan.salvage is None else _lost(manifest, plan.salvage, plan.first)
    records = chain(archived_records(manifest, plan.first, plan.last), lost)
    topic_id = refill_log(target, records, plan.first, plan.end, on_record)
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
        topic=target.label,
        topic_id=topic_id,
        bootstrap_servers=target.address,
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


def compare(manifest: Manifest, target: LogSettings, end: int, salvage: Salvage | None = None) -> Comparison:
    """Read all records of a topic below `end` and compare each with the archive's, its offset and time included.

    After the archive's end it is compared with the lost records of the salvage. A log that keeps no times of its own is
    compared without them: both roots have the archive's.
    """
    different, archived_root, restored_root = None, sha256(), sha256()
    found = _topic_records(target, end) if target.keeps_times else _timed(manifest, target, end, salvage)
    for record, (offset, expected) in zip(found, _expected(manifest, end, salvage), strict=True):
        digest = archived_digest(record)
        archived_root.update(expected)
        restored_root.update(digest)
        if different is None and digest != expected:
            different = offset
    return Comparison(different, archived_root.hexdigest(), restored_root.hexdigest())


def archived_records(manifest: Manifest, first: int, last: int) -> Iterator[StoredRecord]:
    """The archive's records first..last. Raises SegmentDamaged."""
    for segment in manifest.segments:
        if segment.facts.last >= first and segment.facts.first <= last:
            for record in manifest.records(segment.facts):
                if first <= record.offset <= last:
                    yield record


def lost_records(salvage: Salvage, time_ms: int, first: int = 0) -> Iterator[StoredRecord]:
    """The lost records from offset `first` on. They carry the last time that was kept, so that who goes on after a kill
    writes the same."""
    for offset in range(max(first, salvage.first), salvage.last + 1):
        yield StoredRecord(offset, time_ms, None, salvage.lost_record(offset))


def _lost(manifest: Manifest, salvage: Salvage, first: int = 0) -> Iterator[StoredRecord]:
    return lost_records(salvage, manifest.segments[-1].facts.last_ms if manifest.segments else 0, first)


def _expected(manifest: Manifest, end: int, salvage: Salvage | None) -> Iterator[tuple[int, bytes]]:
    yield from _archived(manifest, end)
    if salvage is not None:
        for record in _lost(manifest, salvage):
            if record.offset < end:
                yield record.offset, archived_digest(record)


def _archived(manifest: Manifest, end: int) -> Iterator[tuple[int, bytes]]:
    """Offset and digest of every archived record below `end`; the files were verified before."""
    for segment in manifest.segments:
        facts = segment.facts
        raw = manifest.layout.digests(facts)
        for offset in range(facts.first, min(facts.last + 1, end)):
            at = (offset - facts.first) * DIGEST_BYTES
            yield offset, raw[at : at + DIGEST_BYTES]


def _timed(manifest: Manifest, target: LogSettings, end: int, salvage: Salvage | None) -> Iterator[StoredRecord]:
    """The topic's records with the times that the archive's have."""
    lost = () if salvage is None else _lost(manifest, salvage)
    timed = takewhile(lambda record: record.offset < end, chain(archived_records(manifest, 0, end - 1), lost))
    for record, archived in zip(_topic_records(target, end), timed, strict=True):
        yield msgspec.structs.replace(record, timestamp_ms=archived.timestamp_ms)


def _topic_records(target: LogSettings, end: int) -> Iterator[StoredRecord]:
    for batch in read_stretch(target, 0, end):
        yield from records_of(batch)
