"""A Spark data source over `LogAdmin.stretch`, which every log has, for use without Spark's own connector.

It reads the log with the replicas' own client, so it needs no jar and no second set of security settings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from pipeline.sources.stretch import read_stretch, stretches
from pipeline.sources.topic import look_at
from replica.log.settings import load_settings


@dataclass
class Part(InputPartition):
    """Offsets [first, end) of the log, read by one task."""

    first: int
    end: int


class LogSource(DataSource):
    """Format `notary_log`. Options: `settings` (as `dump_settings` has them, no secrets), `first`, `splits`; of a range
    `end`, of a stream `batch_records`."""

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

    def streamReader(self, schema: StructType) -> LogSourceStreamReader:
        """Called once a query."""
        return LogSourceStreamReader(self.options)


class LogSourceReader(DataSourceReader):
    """Reads a range of offsets in stretches of nearly equal length."""

    def __init__(self, options: Any) -> None:
        self._settings = options["settings"]
        self._first, self._end, self._splits = (int(options[name]) for name in ("first", "end", "splits"))

    def partitions(self) -> Sequence[InputPartition]:
        """The stretches, in order. An empty range has one, because Spark asks a reader without any for all it has."""
        return _parts(self._first, self._end, self._splits)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one stretch, all of them or an error."""
        return _read(self._settings, partition)


class LogSourceStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the log from an offset on, batch by batch, each as a range of offsets."""

    def __init__(self, options: Any) -> None:
        self._settings = options["settings"]
        self._first, self._splits, self._records = (int(options[name]) for name in ("first", "splits", "batch_records"))
        self._until: int | None = None

    def initialOffset(self) -> dict[str, int]:
        """Where a new query begins."""
        return {"offset": self._first}

    def getDefaultReadLimit(self) -> ReadLimit:
        """Of one batch."""
        return ReadMaxRows(self._records)

    def prepareForTriggerAvailableNow(self) -> None:
        """What the log has now is all that the query reads."""
        self._until = self._end()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """Where the next batch ends: at the log's end, or where the batch is full."""
        first, end = start["offset"], self._end() if self._until is None else self._until
        return {"offset": max(first, min(end, first + self._records))}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """The stretches of a batch, in order."""
        return _parts(start["offset"], end["offset"], self._splits)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one stretch, all of them or an error."""
        return _read(self._settings, partition)

    def _end(self) -> int:
        return look_at(load_settings(self._settings), any_contract=True).end


def _parts(first: int, end: int, splits: int) -> list[Part]:
    return [Part(*one) for one in stretches(first, end, splits) or [(first, first)]]


def _read(settings: str, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, Part):
        raise TypeError(f"not a stretch of the log: {partition}")
    yield from read_stretch(load_settings(settings), partition.first, partition.end)
