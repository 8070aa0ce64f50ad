"""One segment of the archive: a stretch of the log as a Parquet file, and beside it the digest of each record.

The digests are in a separate file, so that an edited record can be named even if the whole Parquet file was rewritten.
Both files are named by their first and last offset, padded, so that names sort and gaps show.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.judging.columns import decode
from pipeline.judging.plan import Survey, survey
from pipeline.sources.stretch import ARROW_SCHEMA
from replica.log.admin import StoredRecord
from replica.notary.errors import InvariantBroken

DIGEST_BYTES = 32
ROW_GROUP_RECORDS = 10_000
PARTIAL = ".partial"
_DIGITS = 19  # of the largest 64-bit offset
_HEAD = struct.Struct(">qqii")
_NULL = -1  # the length of what is null


class SegmentFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a segment once its files are written. Times are the broker's, milliseconds UTC."""

    first: int
    last: int
    first_ms: int
    last_ms: int  # the highest; a broker's clock may go back
    parquet_bytes: int
    parquet_sha256: str
    digests_sha256: str

    @property
    def count(self) -> int:
        """Number of records: offsets are dense."""
        return self.last - self.first + 1


class SegmentDamaged(Exception):
    """A segment cannot be read from this offset on, or its record there is not the one that was archived."""

    def __init__(self, offset: int, problem: str) -> None:
        self.offset = offset
        self.problem = problem
        super().__init__(f"offset {offset}: {problem}")


def segment_name(first: int, last: int) -> str:
    """The name of a segment's files, without their endings."""
    return f"{first:0{_DIGITS}d}-{last:0{_DIGITS}d}"


def parquet_path(folder: Path, first: int, last: int) -> Path:
    """The file with the records."""
    return folder / f"{segment_name(first, last)}.parquet"


def digests_path(folder: Path, first: int, last: int) -> Path:
    """The file with 32 bytes a record: its digest."""
    return folder / f"{segment_name(first, last)}.digests"


def archived_digest(record: StoredRecord) -> bytes:
    """SHA-256 of a whole record, its offset included, so that a moved record has another digest."""
    key_bytes = _NULL if record.key is None else len(record.key)
    value_bytes = _NULL if record.value is None else len(record.value)
    digest = sha256(_HEAD.pack(record.offset, record.timestamp_ms, key_bytes, value_bytes))
    digest.update((record.key or b"") + (record.value or b""))
    if record.headers:
        digest.update(msgspec.msgpack.encode(record.headers))
    return digest.digest()


def records_of(batch: pa.RecordBatch) -> Iterator[StoredRecord]:
    """The rows of a batch with the columns of ARROW_SCHEMA."""
    headers = batch.column("headers")
    none = headers.null_count == len(headers)
    for offset, timestamp_ms, key, value, found in zip(
        batch.column("offset").to_pylist(),
        batch.column("timestamp_ms").to_pylist(),
        batch.column("key").to_pylist(),
        batch.column("value").to_pylist(),
        [None] * len(headers) if none else headers.to_pylist(),
        strict=True,
    ):
        pairs = tuple((header["key"], header["value"]) for header in found) if found else ()
        yield StoredRecord(offset, timestamp_ms, key, value, pairs)


def digests_of(batch: pa.RecordBatch) -> bytes:
    """The archived digest of each row, one after the other."""
    if batch.column("key").null_count + batch.column("headers").null_count < 2 * batch.num_rows:
        return b"".join(map(archived_digest, records_of(batch)))
    values = batch.column("value")
    heads = np.empty(batch.num_rows, [("offset", ">i8"), ("timestamp_ms", ">i8"), ("key", ">i4"), ("value", ">i4")])
    heads["offset"] = batch.column("offset").to_numpy()
    heads["timestamp_ms"] = batch.column("timestamp_ms").to_numpy()
    heads["key"] = _NULL
    heads["value"] = pc.binary_length(values).fill_null(_NULL).to_numpy()
    raw = heads.view(f"V{_HEAD.size}").tolist()
    return b"".join(sha256(head + (value or b"")).digest() for head, value in zip(raw, values.to_pylist(), strict=True))


def write_segment(folder: Path, batches: Iterator[pa.RecordBatch]) -> tuple[SegmentFacts, list[Survey]] | None:
    """Write one segment of records without a gap, and survey it; None, and no file, if there are none.

    The files appear under their names only once they are whole and on the disk. Raises InvariantBroken on a gap.
    """
    writer = _SegmentWriter(folder)
    try:
        for batch in batches:
            if batch.num_rows:
                writer.take(batch)
        return writer.finish()
    finally:
        writer.clean_up()


class _SegmentWriter:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._partial = folder / f"{uuid4().hex}{PARTIAL}"
        self._file: pq.ParquetWriter | None = None
        self._surveys: list[Survey] = []
        self._digests: list[bytes] = []
        self._times: list[int] = []

    def take(self, batch: pa.RecordBatch) -> None:
        """Write the records of a batch; it has some."""
        if self._file is None:
            self._file = pq.ParquetWriter(
                self._partial, ARROW_SCHEMA, compression="zstd", use_dictionary=False, write_page_checksum=True
            )
        offsets = batch.column("offset").to_numpy()
        first = self._surveys[-1].end_offset if self._surveys else int(offsets[0])
        if not np.array_equal(offsets, np.arange(first, first + len(offsets))):
            raise InvariantBroken(f"the log goes from offset {first - 1} to {offsets[0]} to {offsets[-1]}, not densely")
        self._surveys.append(survey(decode(first, batch.column("value"))))
        self._digests.append(digests_of(batch))
        times = batch.column("timestamp_ms").to_numpy()
        self._times += (int(times.min()), int(times.max()))
        self._file.write_batch(batch.select(ARROW_SCHEMA.names).cast(ARROW_SCHEMA), row_group_size=ROW_GROUP_RECORDS)

    def finish(self) -> tuple[SegmentFacts, list[Survey]] | None:
        """Complete the files and give them their names."""
        if self._file is None:
            return None
        self._file.close()
        digests = b"".join(self._digests)
        first, last = self._surveys[0].first_offset, self._surveys[-1].end_offset - 1
        facts = SegmentFacts(
            first=first,
            last=last,
            first_ms=min(self._times),
            last_ms=max(self._times),
            parquet_bytes=self._partial.stat().st_size,
            parquet_sha256=sha256_of(self._partial),
            digests_sha256=sha256(digests).hexdigest(),
        )
        sync_file(self._partial)
        write_whole(digests_path(self._folder, first, last), digests)
        self._partial.replace(parquet_path(self._folder, first, last))
        sync_file(self._folder)
        return facts, self._surveys

    def clean_up(self) -> None:
        self._partial.unlink(missing_ok=True)


def read_segment(folder: Path, facts: SegmentFacts) -> Iterator[StoredRecord]:
    """The records of a segment whose files are what the facts say.

    Raises SegmentDamaged, before the first record, at the first offset that is missing, unreadable or not as archived.
    """
    find_damage(folder, facts)
    yield from _read_parquet(parquet_path(folder, facts.first, facts.last), facts)


def find_damage(folder: Path, facts: SegmentFacts) -> None:
    """Raise SegmentDamaged at the first offset of a segment that is missing, unreadable or not as it was archived."""
    parquet, digests = (path(folder, facts.first, facts.last) for path in (parquet_path, digests_path))
    if not parquet.exists():
        raise SegmentDamaged(facts.first, f"{parquet.name} is missing")
    if sha256_of(parquet) != facts.parquet_sha256:
        _find_edited(parquet, digests, facts)
        raise SegmentDamaged(facts.first, f"{parquet.name} is not the file that was archived, though its records are")
    if not digests.exists() or sha256_of(digests) != facts.digests_sha256:
        raise SegmentDamaged(facts.first, f"{digests.name} is missing or not the file that was archived")


def _find_edited(parquet: Path, digests: Path, facts: SegmentFacts) -> None:
    """Raise SegmentDamaged at the first record that is not as archived, judged by the digests."""
    expected = digests.read_bytes() if digests.exists() else b""
    if sha256(expected).hexdigest() != facts.digests_sha256:
        raise SegmentDamaged(facts.first, f"neither {parquet.name} nor {digests.name} is the file that was archived")
    following = facts.first
    for record in _read_parquet(parquet, facts):
        at = (following - facts.first) * DIGEST_BYTES
        if record.offset != following or archived_digest(record) != expected[at : at + DIGEST_BYTES]:
            raise SegmentDamaged(following, f"the record in {parquet.name} is not the one that was archived")
        following += 1
    if following <= facts.last:
        raise SegmentDamaged(following, f"{parquet.name} ends before this record")


def _read_parquet(path: Path, facts: SegmentFacts) -> Iterator[StoredRecord]:
    following = facts.first
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            for group in range(file.num_row_groups):
                for batch in file.read_row_group(group).to_batches():
                    for record in records_of(batch):
                        yield record
                        following = record.offset + 1
    except (pa.ArrowException, OSError, ValueError, KeyError, OverflowError) as error:
        raise SegmentDamaged(following, f"{path.name} cannot be read from here on: {_first_line(error)}") from None


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that is there whole or not at all, also after a crash."""
    partial = path.with_name(f"{path.name}{PARTIAL}")
    partial.write_bytes(content)
    sync_file(partial)
    partial.replace(path)
    sync_file(path.parent)


def sync_file(path: Path) -> None:
    """Return once what was written to a file, or to a folder's list of files, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _first_line(error: Exception) -> str:
    text: Sequence[Any] = str(error).strip().splitlines()
    return str(text[0]) if text else type(error).__name__
