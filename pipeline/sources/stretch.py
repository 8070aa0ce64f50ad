"""A Spark data source over `LogAdmin.stretch`, which every log has, for use without Spark's own connector.

It reads the log with the replicas' own client, so it needs no jar and no second set of security settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from replica.log.admin import Header, Stretch
from replica.log.open import open_log_admin
from replica.log.settings import LogSettings, load_settings

ARROW_SCHEMA = pa.schema(
    [
        ("offset", pa.int64()),
        ("timestamp_ms", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)


@dataclass
class Part(InputPartition):
    """Offsets [first, end) of the log, read by one task."""

    first: int
    end: int


class LogSource(DataSource):
    """Format `notary_log`. Options: `settings` (as `dump_settings` has them, no secrets), `first`, `end`, `splits`."""

    SCHEMA: ClassVar[str] = (
        "offset bigint, timestamp_ms bigint, key binary, value binary, headers array<struct<key:string,value:binary>>"
    )

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "notary_log"

    def schema(self) -> str:
        """The same columns whatever the options."""
        return self.SCHEMA

    def reader(self, schema: StructType) -> LogSourceReader:
        """Called once a query."""
        return LogSourceReader(self.options)


class LogSourceReader(DataSourceReader):
    """Reads a range of offsets in stretches of nearly equal length."""

    def __init__(self, options: Any) -> None:
        self._settings = options["settings"]
        self._first, self._end, self._splits = (int(options[name]) for name in ("first", "end", "splits"))

    def partitions(self) -> Sequence[InputPartition]:
        """The stretches, in order. An empty range has one, because Spark asks a reader without any for all it has."""
        cut = stretches(self._first, self._end, self._splits) or [(self._first, self._first)]
        return [Part(first, end) for first, end in cut]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one stretch, all of them or an error."""
        if not isinstance(partition, Part):
            raise TypeError(f"not a stretch of the log: {partition}")
        yield from read_stretch(load_settings(self._settings), partition.first, partition.end)


def stretches(first: int, end: int, splits: int) -> list[tuple[int, int]]:
    """The range [first, end) in at most `splits` ranges, none of them empty, of nearly equal length."""
    count = min(splits, end - first)
    edges = [first + (end - first) * number // count for number in range(count + 1)] if count > 0 else []
    return list(pairwise(edges))


def read_stretch(settings: LogSettings, first: int, end: int) -> Iterator[pa.RecordBatch]:
    """The records [first, end) as batches of ARROW_SCHEMA. Raises LogRefused on a gap, and LogUnavailable."""
    return map(_batch, open_log_admin(settings).stretch(first, end))


def _batch(stretch: Stretch) -> pa.RecordBatch:
    first, count = stretch.first_offset, len(stretch.values)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(range(first, first + count), pa.int64()),
            pa.array(stretch.times_ms, pa.int64()),
            pa.array(stretch.keys, pa.binary()),
            pa.array(stretch.values, pa.binary()),
            pa.array([_pairs(headers) for headers in stretch.headers], ARROW_SCHEMA.field("headers").type),
        ],
        schema=ARROW_SCHEMA,
    )


def _pairs(headers: Sequence[Header] | None) -> list[dict[str, Any]] | None:
    return None if headers is None else [{"key": key, "value": value} for key, value in headers]
