"""Segments of the archive, written by tasks on Spark: several at a time, on one machine or many."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession

from pipeline.archive.layout import Layout
from pipeline.archive.segment import SegmentFacts
from pipeline.archive.write import WriteSegments, Written
from pipeline.judging.plan import Survey
from pipeline.sources.log import Connector, log_frame
from replica.log.settings import LogSettings


def on_spark(spark: SparkSession, settings: LogSettings, connector: Connector = "auto") -> WriteSegments:
    """Each segment is written by a task."""

    def write(layout: Layout, first: int, end: int, splits: int) -> list[Written]:
        frame = log_frame(spark, settings, first, end, splits=splits, connector=connector)
        rows = frame.mapInArrow(partial(_write, layout), "facts binary, surveys binary").collect()  # a row a segment
        decode = msgspec.msgpack.decode
        return [(decode(row.facts, type=SegmentFacts), decode(row.surveys, type=list[Survey])) for row in rows]

    return write


def _write(layout: Layout, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In a worker: one partition is one segment."""
    written = layout.write(batches)
    if written is not None:
        facts, surveys = written
        encoded = {"facts": [msgspec.msgpack.encode(facts)], "surveys": [msgspec.msgpack.encode(surveys)]}
        yield pa.RecordBatch.from_pydict(encoded)
