"""The archive against the notary: what batched submission appends to the log, the archive must take away faster.

A rate is measured that lasts: the archiver archives the whole log twice, each time into a new folder and with one
session. The first time is cold, and reported as such; the second is what `notary archive run --follow` does all day,
and is compared with the notary, which has warmed up as well.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import monotonic
from uuid import uuid4

from pyspark.sql import SparkSession

from pipeline.archive.write import Archiver
from pipeline.session import spark_session
from pipeline.sources.topic import look_at
from replica.active.signer import create_key, load_signer
from replica.local.cluster import ClusterSettings, LocalCluster, remove_cluster
from replica.log.kafka.settings import KafkaSettings
from replica.store.archive_head import ArchiveHeads
from tests.bench.load import BATCH, LoadGenerator
from tests.bench.report import Report

RUN_S = 10.0
RUNS = 3
TURNS = ("cold", "warm")


async def measure_archive(folder: Path, report: Report) -> None:
    """Load a cluster with batches, then archive the log that it left, replicas stopped; records a second of both."""
    report.section("Archive against batched submission")
    await remove_cluster(folder / "cluster")
    async with LocalCluster(ClusterSettings(folder=folder / "cluster", replicas=2)) as cluster:
        load = LoadGenerator(folder / "bodies", cluster.parties)
        warm = await load.warm_up(cluster.config.endpoint, BATCH)
        results = await load.measure(cluster.config.endpoint, BATCH, RUNS, RUN_S, warm)
        rates = [result.per_second * BATCH.per_body for result in results]
        notary_per_s = report.add_runs("notary_batch_per_s", rates, "batched submission", "records/s")
        for replica in cluster.replicas.values():
            await replica.stop()
        settings, heads = cluster.kafka_settings, ArchiveHeads(cluster.config.conninfo())
        records, took_s = await asyncio.to_thread(_archive_twice, settings, heads, folder)
    report.add("archive_records", records, "records archived, each time", f"{records:,}")
    for turn, seconds in took_s.items():
        text = f"{records / seconds:,.0f} records/s, in {seconds:.1f} s"
        report.add(f"archive_{turn}_per_s", round(records / seconds), f"archive, {turn}", text)
    ratio = records / took_s["warm"] / notary_per_s
    report.add("archive_vs_notary_ratio", round(ratio, 2), "archive against the notary", f"{ratio:.2f} times as fast")
    cold = records / took_s["cold"] / notary_per_s
    report.add("archive_vs_notary_cold", round(cold, 2), "the same, cold", f"{cold:.2f} times as fast")


def _archive_twice(settings: KafkaSettings, heads: ArchiveHeads, folder: Path) -> tuple[int, dict[str, float]]:
    """How many records were archived each time, and the seconds that each time took; the session's start is in none."""
    create_key(folder / "archive.key")
    session = spark_session("bench-archive")
    view = look_at(settings)
    took_s = {}
    for turn in TURNS:
        began_s = monotonic()
        _archive(session, settings, heads, folder, turn)
        took_s[turn] = monotonic() - began_s
    session.stop()
    return view.end, took_s


def _archive(session: SparkSession, settings: KafkaSettings, heads: ArchiveHeads, folder: Path, turn: str) -> None:
    archiver = Archiver(session, settings, folder / turn, load_signer(folder / "archive.key"), heads)
    view = look_at(settings)
    with archiver.open(view, 0, str(uuid4())) as manifest:
        archiver.archive(manifest, view.end)
        if manifest.last != view.end - 1:
            raise SystemExit(f"archived up to {manifest.last}, the log ends at {view.end}")
