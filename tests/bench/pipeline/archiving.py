"""The archive against the notary: what batched submission appends to the log, the archive must take away faster."""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import monotonic
from uuid import uuid4

from pipeline.archive.write import Archiver
from pipeline.session import spark_session
from pipeline.sources.topic import look_at
from replica.core.signer import create_key, load_signer
from replica.local.cluster import ClusterSettings, LocalCluster, remove_cluster
from replica.store.archive_head import ArchiveHeads
from tests.bench.load import BATCH, LoadGenerator
from tests.bench.report import Report

RUN_S = 10.0
RUNS = 3
WARM_SHARE = 0.2


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
        archive_per_s, records = await asyncio.to_thread(_archive, cluster, folder)
    report.add("archive_per_s", round(archive_per_s), "archive", f"{archive_per_s:,.0f} records/s, of {records:,}")
    ratio = archive_per_s / notary_per_s
    report.add("archive_vs_notary_ratio", round(ratio, 2), "archive against the notary", f"{ratio:.2f} times as fast")


def _archive(cluster: LocalCluster, folder: Path) -> tuple[float, int]:
    """Records a second of an archiver that runs already, as with `--follow`, up to its newest head in the database.

    It has archived a share of the log before: the notary is measured warm as well.
    """
    settings = cluster.config.kafka
    session = spark_session("bench-archive")
    session.range(4).count()
    create_key(folder / "archive.key")
    heads = ArchiveHeads(cluster.config.conninfo())
    archiver = Archiver(session, settings, folder / "archive", load_signer(folder / "archive.key"), heads)
    view = look_at(settings)
    with archiver.open(view, 0, str(uuid4())) as manifest:
        archiver.archive(manifest, int(view.end * WARM_SHARE))
        before, began_s = manifest.last, monotonic()
        archiver.archive(manifest, view.end)
        took_s, records = monotonic() - began_s, manifest.last - before
    session.stop()
    return records / took_s, records
