"""`notary tables run --engine spark`: a streaming query on Spark writes the tables."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, NamedTuple

from replica.cli.common import err
from replica.cli.pipeline import SparkChoice, connector_named, missing_packages, require_pipeline, spark
from replica.notary.codes import Code
from replica.notary.errors import ConfigError

if TYPE_CHECKING:
    from pipeline.tables.query import Batch
    from pipeline.tables.query_metrics import QueryMetrics
    from replica.config.model import Config
    from replica.log.settings import LogSettings
    from replica.notary.salvage import Salvages

INDEX = "tables.index"  # in data_dir: what the tables' job has seen spent, whichever engine writes


class Written(NamedTuple):
    """The offset that the tables reached before, and now; the columns of each, in Delta's JSON."""

    before: int
    now: int
    schemas: dict[str, str]


def can_run_spark(config: Config) -> bool:
    """Whether everything is there that the query needs, and it can write where the tables are kept."""
    if not isinstance(config.tables.folder, Path) or missing_packages("pyspark") or missing_packages("pandas"):
        return False
    from pipeline.session import delta_jars, has_java

    return has_java() and bool(delta_jars())


class OnSpark:
    """What writes the tables on Spark. `stopping`: once it is set, the batch that runs is the last one."""

    def __init__(self, config: Config, salvages: Salvages, where: SparkChoice, connector: str, stopping: Event) -> None:
        """Raises ConfigError for what a person must change first."""
        require_pipeline()
        from pipeline.session import delta_jars
        from pipeline.tables.query_metrics import QueryMetrics

        if not isinstance(config.tables.folder, Path):
            raise ConfigError(f"--engine spark writes to a folder, not to {config.tables.folder}: use --engine process")
        if where.master.startswith("sc://"):
            raise ConfigError("--engine spark judges beside Spark's driver, which Spark Connect does not have here")
        if not where.packages and not delta_jars():
            hint = "`make setup` fetches them, or name io.delta:delta-spark_4.2_2.13:4.4.0 with --packages"
            raise ConfigError(f"Spark has no jars of Delta Lake here: {hint}", Code.PIPELINE_MISSING)
        self._config, self._salvages = config, salvages
        self._where, self._connector = where, connector_named(connector)
        self.stopping = stopping
        self.metrics: QueryMetrics = QueryMetrics()

    def write(
        self,
        interval_s: float | None,
        succeeded: Callable[[int], None],
        on_schemas: Callable[[dict[str, str]], None],
    ) -> Written:
        """Append what the log has; with an interval, until it is told to stop. `on_schemas` gets the tables' columns
        after each batch."""
        from pipeline.sources.log import log_stream
        from pipeline.sources.topic import refuse_other_log
        from pipeline.tables.query import BATCH_RECORDS, SparkWriter, run_query
        from pipeline.tables.query_metrics import watched
        from pipeline.tables.rows import REQUESTS
        from pipeline.tables.write import open_judge

        log, folder = self._config.log.settings, self._config.tables.folder
        topic_id = asyncio.run(_checked(log))
        with open_judge(folder, self._config.data_dir / INDEX, topic_id, self._salvages) as (tables, judge):
            refuse_other_log(log, judge.position)
            before = tables[REQUESTS].offset

            def schemas() -> dict[str, str]:
                return {name: table.schema for name, table in tables.items()}

            def done(batch: Batch) -> None:
                self.metrics.wrote(batch)
                if interval_s is not None and sys.stderr.isatty():
                    err.print(_line(batch), markup=False)
                succeeded(batch.offset)
                on_schemas(schemas())

            def idle() -> None:
                succeeded(judge.position.offset)

            on_schemas(schemas())
            with spark("tables", self._where, delta=True) as session, watched(session, self.metrics, idle):
                frame = log_stream(
                    session,
                    log,
                    judge.position.offset + 1,
                    splits=session.sparkContext.defaultParallelism,
                    batch_records=BATCH_RECORDS,
                    connector=self._connector,
                )
                writer = SparkWriter(tables, judge, lambda name: None, done)
                run_query(frame, writer, interval_s=interval_s, stopping=self.stopping)
            return Written(before, tables[REQUESTS].offset, schemas())


async def _checked(settings: LogSettings) -> str:
    """The log's id. Raises LogRefused and LogUnavailable."""
    from replica.log.open import open_log

    log = open_log(settings)
    try:
        return await log.check()
    finally:
        await log.close()


def _line(batch: Batch) -> str:
    """A batch, for people."""
    rate = batch.records / batch.took_s if batch.took_s else 0.0
    driver_us = batch.driver_s / batch.records * 1e6 if batch.records else 0.0
    return (
        f"up to offset {batch.offset:,}: {batch.records:,} records in {batch.took_s:.1f} s, {rate:,.0f}/s,"
        f" judged in {driver_us:.0f} µs each"
    )
