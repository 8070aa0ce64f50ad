"""The same lag with the query on Spark, and how many records a second it writes of a log that is there already.

Spark, broker and generator share the machine. The clock starts when the query has written a batch, as in a job that
runs all day; the session has written a backlog by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from pathlib import Path
from threading import Event
from time import monotonic

from pyspark.sql import SparkSession

from pipeline.session import spark_session
from pipeline.sources.log import log_stream
from pipeline.tables.query import BATCH_RECORDS, Batch, SparkWriter, run_query
from pipeline.tables.write import open_judge
from replica.log.kafka.settings import KafkaSettings
from replica.log.kafka.topic import create_topic
from tests.bench.pipeline.steady import generate, lags_s
from tests.bench.report import Report

INTERVAL_S = 5.0  # as `tables.interval_s` is by default
MASTER = "local[2]"
WARM_RECORDS = 20_000


def measure_on_spark(folder: Path, settings: KafkaSettings, values: Sequence[bytes], report: Report) -> None:
    """The greatest lag at the rate, the rate of a backlog, and the driver's time for a record."""
    report.section(f"The same on Spark, {MASTER}")
    session = spark_session("bench-tables", MASTER, shuffle_partitions=2, delta=True)
    try:
        _backlog(session, folder / "warm", settings, values[:WARM_RECORDS])
        batches, took_s = _backlog(session, folder / "backlog", settings, values)
        rate = len(values) / took_s
        driver_us = sum(batch.driver_s for batch in batches) / len(values) * 1e6
        report.add("tables_spark_records_s", round(rate), "records a second of a backlog", f"{rate:,.0f}/s")
        report.add("tables_spark_driver_us", round(driver_us, 1), "driver, a record", f"{driver_us:.1f} µs")
        lags, late_s = _steady(session, folder / "steady", settings, values)
        report.add("tables_spark_lag_s_max", round(max(lags), 2), "greatest lag of a batch", f"{max(lags):.2f} s")
        report.line("each batch's", " ".join(f"{lag_s:.1f}" for lag_s in lags))
        report.line("the generator was late by up to", f"{late_s:.2f} s")
    finally:
        session.stop()


def _backlog(
    session: SparkSession, folder: Path, settings: KafkaSettings, values: Sequence[bytes]
) -> tuple[list[Batch], float]:
    """All of a log that is there: its batches, and how long they took."""
    topic = _filled_topic(settings, folder.name, values)
    batches: list[Batch] = []
    began_s = monotonic()
    _run(session, folder, topic, batches.append, None, Event())
    return batches, monotonic() - began_s


def _steady(
    session: SparkSession, folder: Path, settings: KafkaSettings, values: Sequence[bytes]
) -> tuple[list[float], float]:
    """The lag of each batch while records come at the rate, and how late the generator was."""
    topic = _filled_topic(settings, folder.name, values[:WARM_RECORDS])
    ours, theirs = get_context("spawn").Pipe()
    generator = get_context("spawn").Process(target=generate, args=(topic, values[WARM_RECORDS:], theirs))
    generator.start()
    commits: list[tuple[float, int]] = []
    began_s = 0.0
    stopping = Event()

    def done(batch: Batch) -> None:
        nonlocal began_s
        if not began_s:
            ours.send("go")
            began_s = ours.recv()
            return
        commits.append((monotonic(), batch.offset - WARM_RECORDS))
        if batch.offset + 1 == len(values):
            stopping.set()

    _run(session, folder, topic, done, INTERVAL_S, stopping)
    late_s = ours.recv()
    generator.join()
    return lags_s(commits, began_s), late_s


def _run(
    session: SparkSession,
    folder: Path,
    topic: KafkaSettings,
    done: Callable[[Batch], None],
    interval_s: float | None,
    stopping: Event,
) -> None:
    stream = log_stream(session, topic, 0, splits=2, batch_records=BATCH_RECORDS)
    with open_judge(folder / "tables", folder / "index", topic.topic) as (tables, judge):
        run_query(stream, SparkWriter(tables, judge, lambda name: None, done), interval_s=interval_s, stopping=stopping)


def _filled_topic(settings: KafkaSettings, name: str, values: Sequence[bytes]) -> KafkaSettings:
    """A new topic with these records."""
    topic = settings.model_copy(update={"topic": f"{settings.topic}-{name}"})
    asyncio.run(create_topic(topic))
    ours, theirs = get_context("spawn").Pipe()
    filler = get_context("spawn").Process(target=generate, args=(topic, values, theirs, 1e9))
    filler.start()
    ours.send("go")
    ours.recv(), ours.recv()
    filler.join()
    return topic
