"""What operators see of the streaming query that writes the tables: Spark's own figures of its batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from pipeline.tables.query import Batch

_NAME = "notary_tables"


class QueryMetrics(Collector):
    """The newest batch of the query, and sums over all of this process."""

    def __init__(self) -> None:
        self._batches = self._records = 0
        self._driver_s = 0.0
        self._rates: dict[str, float] = {}
        self._phases_s: dict[str, float] = {}

    def wrote(self, batch: Batch) -> None:
        """Note a batch that is in every table."""
        self._batches += 1
        self._records += batch.records
        self._driver_s += batch.driver_s

    def progressed(self, arrived_s: float, processed_s: float, phases_ms: Mapping[str, int]) -> None:
        """Note what Spark says of its newest batch: records a second that came and that were processed, and
        the milliseconds of each phase."""
        self._rates = {"input": arrived_s, "processed": processed_s}
        self._phases_s = {phase: took_ms / 1e3 for phase, took_ms in phases_ms.items()}

    def collect(self) -> Iterable[Metric]:
        for name, what, value in (
            ("batches", "Batches that the query wrote.", self._batches),
            ("records", "Records in them.", self._records),
            ("driver_seconds", "Processor time in which the driver judged them.", self._driver_s),
        ):
            yield CounterMetricFamily(f"{_NAME}_{name}", what, value=value)
        rates = GaugeMetricFamily(
            f"{_NAME}_rate_records", "Records a second: `input` came, `processed` were written.", labels=["kind"]
        )
        for kind, rate in sorted(self._rates.items()):
            rates.add_metric([kind], rate)
        yield rates
        phases = GaugeMetricFamily(
            f"{_NAME}_batch_seconds", "How long the newest batch took, by phase, as Spark names it.", labels=["phase"]
        )
        for phase, took_s in sorted(self._phases_s.items()):
            phases.add_metric([phase], took_s)
        yield phases


class _Listener(StreamingQueryListener):
    def __init__(self, metrics: QueryMetrics, idle: Callable[[], None]) -> None:
        self._metrics, self._idle = metrics, idle

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing is known yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """After each batch."""
        of = event.progress
        self._metrics.progressed(of.inputRowsPerSecond, of.processedRowsPerSecond, dict(of.durationMs))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """The log was asked, and has nothing new."""
        self._idle()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Whoever started the query hears of it."""


@contextmanager
def watched(spark: SparkSession, metrics: QueryMetrics, idle: Callable[[], None]) -> Iterator[None]:
    """Spark tells of its queries while the context lasts; `idle` is called when a query finds nothing new."""
    listener = _Listener(metrics, idle)
    spark.streams.addListener(listener)
    try:
        yield
    finally:
        spark.streams.removeListener(listener)
