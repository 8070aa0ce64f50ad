"""The archive as typed columns: each segment is read by one task, from the position that the manifest has for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from pipeline.archive.manifest import load_manifest
from pipeline.archive.segment import SegmentFacts, read_values
from pipeline.records import sql_schema, typed_batches
from replica.notary.errors import ArchiveDamaged
from replica.notary.position import Position, decode_position, encode_position


def archive_records(
    spark: SparkSession,
    folder: Path,
    columns: Sequence[str],
    *,
    public_key: bytes | None = None,
    until: int | None = None,
) -> DataFrame:
    """These columns of pipeline.records.COLUMNS, one row a record, for all that is archived up to offset `until`.

    The manifest is checked now, with its signatures if the key is given; each segment's files when they are read.
    Segments are partitions; one that goes beyond `until` is cut. Raises ArchiveDamaged; so does the query.
    """
    manifest = load_manifest(folder, public_key)
    last = manifest.last if until is None else until
    if last > manifest.last:
        raise ArchiveDamaged(f"the archive covers the log up to offset {manifest.last}, asked for is {last}")
    segments = [segment.facts for segment in manifest.segments if segment.facts.first <= last]
    # encoded: a position may be large, and each task is sent all of them
    starts = [encode_position(manifest.position_before(facts.first)) for facts in segments]
    at = manifest.segments_folder

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from _typed(at, segments[number], decode_position(starts[number]), columns, last)

    if not segments:
        return spark.createDataFrame([], sql_schema(columns))
    return spark.range(0, len(segments), 1, len(segments)).mapInArrow(read, sql_schema(columns))


def _typed(
    folder: Path, facts: SegmentFacts, start: Position, columns: Sequence[str], last: int
) -> Iterator[pa.RecordBatch]:
    values = ((offset, value) for offset, value in read_values(folder, facts) if offset <= last)
    yield from typed_batches(values, {facts.first: start}, columns)
