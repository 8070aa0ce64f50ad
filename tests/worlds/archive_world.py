"""Archives for tests, made without Spark, broker or database."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from pipeline.archive.layout import FolderLayout, Layout
from pipeline.archive.manifest import Manifest, Opened, Segment, open_manifest
from pipeline.archive.verify import Verification, verify_archive
from pipeline.judging.plan import advance
from pipeline.sources.stretch import ARROW_SCHEMA
from replica.active.signer import FileSigner
from replica.notary.position import encode_position
from replica.store.archive_head import ArchiveHead
from tests.worlds.notary_logs import TOPIC, begun, request_of

SIGNER = FileSigner(Ed25519PrivateKey.from_private_bytes(b"a" * 32))
TIME_MS = 1_700_000_000_000


@dataclass
class HeadsInMemory:
    """The shared database's part."""

    heads: dict[str, ArchiveHead] = field(default_factory=dict)

    def newest(self, archive_id: str) -> ArchiveHead | None:
        return self.heads.get(archive_id)

    def record(self, archive_id: str, head: ArchiveHead) -> None:
        known = self.heads.get(archive_id)
        if known is None or known.lines < head.lines:
            self.heads[archive_id] = head


def some_log(records: int) -> list[bytes]:
    """What a log begins with, and requests."""
    maker = begun()
    while len(maker.values) < records:
        maker.submit(request_of(len(maker.values), (len(maker.values),)))
    return maker.values[:records]


def batch_of(values: list[bytes | None], first: int) -> pa.RecordBatch:
    """Records as a source gives them, one a second."""
    rows = [
        {
            "offset": first + at,
            "timestamp_ms": TIME_MS + 1_000 * (first + at),
            "key": None,
            "value": value,
            "headers": None,
        }
        for at, value in enumerate(values)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=ARROW_SCHEMA)


def batches_of(values: list[bytes], first: int) -> Iterator[pa.RecordBatch]:
    """The same in two batches."""
    middle = len(values) // 2
    yield batch_of(list(values[:middle]), first)
    yield batch_of(list(values[middle:]), first + middle)


def make_archive(folder: Path, values: list[bytes], segment_records: int = 10) -> tuple[Manifest, HeadsInMemory]:
    """An archive of a log in a local folder, its head recorded."""
    return fill_archive(FolderLayout(folder), values, segment_records)


def fill_archive(layout: Layout, values: list[bytes], segment_records: int = 10) -> tuple[Manifest, HeadsInMemory]:
    """An archive of a log, new or gone on with, its head recorded."""
    manifest = open_manifest(layout, SIGNER, Opened(archive_id="archive-1", topic_id=TOPIC, at_us=1))
    for first in range(manifest.last + 1, len(values), segment_records):
        written = layout.write(batches_of(values[first : first + segment_records], first))
        assert written is not None
        facts, surveys = written
        position = advance(manifest.position, surveys)
        assert position is not None
        manifest.append(SIGNER, [Segment(facts=facts, position=encode_position(position).hex())])
    heads = HeadsInMemory()
    heads.record("archive-1", manifest.head)
    return manifest, heads


def verified(folder: Path, heads: HeadsInMemory) -> Verification:
    """What `notary archive verify` finds."""
    return verify_archive(folder, SIGNER.public_key, heads.newest)
