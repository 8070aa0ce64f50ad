"""The archive against the notary: what batched submission appends to the log, the archive must take away faster.

A rate is measured that lasts: the archiver archives the whole log twice, each time into a new folder and with one
session. The first time is cold, and reported as such; the second is what `notary archive run --follow` does all day,
and is compared with the notary, which has warmed up as well. A third time it archives to an S3 server on this machine,
if one was built (`make lake`).
"""

from __future__ import annotations

import asyncio
import os
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from uuid import uuid4

from pyspark.sql import SparkSession

from pipeline.archive.on_spark import on_spark
from pipeline.archive.write import Archiver
from pipeline.session import spark_session
from pipeline.sources.topic import look_at
from replica.active.signer import create_key, load_signer
from replica.local.cluster import ClusterSettings, LocalCluster, remove_cluster
from replica.log.kafka.settings import KafkaSettings
from replica.notary.places import Place, Remote
from replica.store.archive_head import ArchiveHeads
from tests.bench.load import BATCH, LoadGenerator
from tests.bench.report import Report
from tests.worlds.s3_server import BUCKET, SERVER, environment, served

RUN_S = 10.0
RUNS = 3
COLD, WARM, S3 = "cold", "warm", "s3"


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
        records, took_s = await asyncio.to_thread(_archive_in_turn, settings, heads, folder)
    report.add("archive_records", records, "records archived, each time", f"{records:,}")
    for turn, seconds in took_s.items():
        text = f"{records / seconds:,.0f} records/s, in {seconds:.1f} s"
        report.add(f"archive_{turn}_per_s", round(records / seconds), f"archive, {turn}", text)
    ratio = records / took_s[WARM] / notary_per_s
    report.add("archive_vs_notary_ratio", round(ratio, 2), "archive against the notary", f"{ratio:.2f} times as fast")
    cold = records / took_s[COLD] / notary_per_s
    report.add("archive_vs_notary_cold", round(cold, 2), "the same, cold", f"{cold:.2f} times as fast")
    if S3 in took_s:
        to_s3 = took_s[WARM] / took_s[S3]
        report.add("archive_s3_ratio", round(to_s3, 2), "archive to S3 against archive to disk", f"{to_s3:.2f}")


def _archive_in_turn(settings: KafkaSettings, heads: ArchiveHeads, folder: Path) -> tuple[int, dict[str, float]]:
    """How many records were archived each time, and the seconds that each time took; the session's start is in none."""
    create_key(folder / "archive.key")
    places: dict[str, Place] = {COLD: folder / COLD, WARM: folder / WARM}
    view = look_at(settings)
    took_s = {}
    with ExitStack() as running:
        if SERVER.exists():
            (folder / S3).mkdir()
            os.environ.update(
                environment(running.enter_context(served((folder / S3).resolve())))
            )  # before Spark starts its workers
            places[S3] = Remote(f"s3a://{BUCKET}/archive")
        session = spark_session("bench-archive")
        running.callback(session.stop)
        for turn, place in places.items():
            began_s = monotonic()
            _archive(session, settings, heads, folder / "archive.key", place)
            took_s[turn] = monotonic() - began_s
    return view.end, took_s


def _archive(session: SparkSession, settings: KafkaSettings, heads: ArchiveHeads, key: Path, place: Place) -> None:
    archiver = Archiver(settings, place, load_signer(key), heads, write=on_spark(session, settings))
    view = look_at(settings)
    with archiver.open(view, 0, str(uuid4())) as manifest:
        archiver.archive(manifest, view.end)
        if manifest.last != view.end - 1:
            raise SystemExit(f"archived up to {manifest.last}, the log ends at {view.end}")
