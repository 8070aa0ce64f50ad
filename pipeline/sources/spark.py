"""A Spark data source over `LogAdmin.stretch`, which every log has, for use without Spark's own connector.

It reads the log with the replicas' own client, so it needs no jar and no second set of security settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pipeline.sources.stretch import read_stretch, stretches
from replica.log.settings import load_settings


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
