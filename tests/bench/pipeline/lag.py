"""How far the tables are behind a log that grows at a steady rate: a real broker, and the job that follows it.

A process of its own appends ready-made records at the rate, each when it is due. The job runs as `notary tables run
--follow` does: broker, index, judgement, Delta tables on disk. The lag is measured where it is greatest: just before
rows become visible, from the moment at which the oldest of them was due. A generator that fell behind says so.
"""

from __future__ import annotations

import asyncio
import os
from multiprocessing import get_context
from pathlib import Path
from time import monotonic, process_time

import numpy as np

from pipeline.tables.write import open_writer, write_tables
from replica.local.kafka import KafkaCluster
from replica.local.ports import PortReservation
from replica.log.kafka.settings import KafkaSettings
from replica.log.kafka.topic import create_topic
from replica.log.open import open_log
from tests.bench.pipeline.big_log import ready_values
from tests.bench.pipeline.lag_on_spark import measure_on_spark
from tests.bench.pipeline.steady import RATE_PER_S, generate, lags_s
from tests.bench.report import Report

INTERVAL_S = 5.0  # as `tables.interval_s` is by default
ENDS_MAX_S = 120.0  # after the last record was due


async def measure_lag(folder: Path, report: Report, run_s: int) -> None:
    """The lag's quantiles over the commits, and the processor time that a record costs."""
    records = RATE_PER_S * run_s
    report.section(f"Lag of the tables at {RATE_PER_S:,} records/s for {run_s} s, appended every {INTERVAL_S:g} s")
    report.line("load average before it", " ".join(f"{one:.1f}" for one in os.getloadavg()))
    values = ready_values(records)
    with PortReservation() as ports:
        cluster = KafkaCluster(folder / "kafka", [ports.take(), ports.take()])
        await cluster.start()
        try:
            settings = KafkaSettings(
                bootstrap_servers=cluster.bootstrap_servers, topic="notary-requests", single_broker=True
            )
            await create_topic(settings)
            commits, began_s, late_s, busy_s = await _follow(folder, settings, values)
            await asyncio.to_thread(measure_on_spark, folder / "spark", settings, values, report)
        finally:
            await cluster.remove()
    lags = lags_s(commits, began_s)
    report.add("tables_lag_commits", len(lags), "commits", str(len(lags)))
    for name, share in (("p50", 50), ("p99", 99), ("max", 100)):
        value = float(np.percentile(lags, share))
        report.add(f"tables_lag_{name}_s", round(value, 2), f"greatest lag of a commit, {name}", f"{value:.2f} s")
    report.add("tables_lag_generator_late_s", round(late_s, 2), "the generator was late by up to", f"{late_s:.2f} s")
    cost_us = busy_s / records * 1e6
    report.add("tables_cpu_us", round(cost_us, 1), "processor time of the job, a record", f"{cost_us:.0f} µs")


async def _follow(
    folder: Path, settings: KafkaSettings, values: list[bytes]
) -> tuple[list[tuple[float, int]], float, float, float]:
    """When which offset was in the tables; when the first record was due; how late one was; the job's processor time.

    Raises TimeoutError when the tables never got there.
    """
    ours, theirs = get_context("spawn").Pipe()
    generator = get_context("spawn").Process(target=generate, args=(settings, values, theirs))
    generator.start()
    commits: list[tuple[float, int]] = []
    done = asyncio.Event()

    def note(offset: int) -> None:
        if offset >= 0 and (not commits or offset > commits[-1][1]):
            commits.append((monotonic(), offset))
        if offset + 1 == len(values):
            done.set()

    log = open_log(settings)
    try:
        topic_id = await log.check()
        with open_writer(folder / "tables", folder / "index", topic_id) as writer:
            ours.send("go")
            began_s = await asyncio.to_thread(ours.recv)
            busy_s = process_time()
            follows = asyncio.create_task(write_tables(log, writer, interval_s=INTERVAL_S, progress=note))
            async with asyncio.timeout(len(values) / RATE_PER_S + ENDS_MAX_S):
                await done.wait()
            busy_s = process_time() - busy_s
            follows.cancel()
            await asyncio.gather(follows, return_exceptions=True)
            late_s = await asyncio.to_thread(ours.recv)
    finally:
        await log.close()
        generator.terminate()
        generator.join()
    return commits, began_s, late_s, busy_s
