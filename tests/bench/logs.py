"""The whole notary with its log on Postgres beside the same with its log on one broker: `--only logs`.

Keys `pglog_*` are of Postgres, `pglog_kafka_*` of Kafka, and `pglog_*_ratio` the one over the other.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from time import perf_counter

from replica.local.cluster import ClusterSettings, LocalCluster, LogKind, remove_cluster
from replica.log.interface import LogReader, LogWriter
from replica.log.open import open_log
from replica.log.postgres.install import install
from replica.log.postgres.log import PostgresLog
from replica.log.postgres.settings import PostgresLogSettings
from tests.bench.load import LoadGenerator
from tests.bench.outages import catch_up
from tests.bench.report import Report, number
from tests.bench.sizes import Sizes
from tests.bench.stream import measure_stream
from tests.bench.throughput import measure_capacity, measure_throughput
from tests.faults.audit import audit
from tests.faults.load import client_load
from tests.faults.scenarios import KILL_CORE, KILL_GROUP, fail_over

KINDS: tuple[LogKind, ...] = ("kafka", "postgres")
GOALS: Mapping[str, str] = {  # what the goal is about, and its figure
    "batch": "batch_tps_4_inputs",
    "stream": "stream_tps_4_inputs",
    "single": "single_tps_4_inputs",
    "latency": "latency_ms_p50_one_connection",
    "catch_up": "catch_up_records_per_s",
    "outage": "kill_outage_s_median",
}
WRITERS, KILLED = 4, 3
PROBES = 400  # of the writer that goes on, before and after the others are killed
READ_BARE = 400_000


async def measure_logs(folder: Path, sizes: Sizes, report: Report) -> None:
    """Both kinds, one after the other; then the log on Postgres alone. Raises Violation."""
    found = {kind: await _of_kind(folder, kind, sizes, report) for kind in KINDS}
    report.section("Postgres over Kafka")
    for name, ratio in ratios(found["postgres"], found["kafka"]).items():
        report.add(f"pglog_{name}_ratio", round(ratio, 3), name, f"{ratio:.2f}")
    server_cluster = ClusterSettings(folder=folder / "bare", replicas=2, log="postgres")
    await remove_cluster(server_cluster.folder)
    async with LocalCluster(server_cluster) as cluster:
        for replica in cluster.replicas.values():
            await replica.stop()
        await _measure_bare(cluster, report)


def ratios(ours: Mapping[str, object], theirs: Mapping[str, object]) -> dict[str, float]:
    """The one over the other, for each goal. Raises KeyError where one of them was not measured."""
    return {name: float(str(ours[figure])) / float(str(theirs[figure])) for name, figure in GOALS.items()}


async def _of_kind(folder: Path, kind: LogKind, sizes: Sizes, report: Report) -> Mapping[str, object]:
    report.section(f"The whole notary, its log on {kind}")
    settings = ClusterSettings(folder=folder / kind, replicas=3, log=kind)
    await remove_cluster(settings.folder)
    own = Report()
    try:
        async with LocalCluster(settings) as cluster:
            load = LoadGenerator(folder / "bodies", cluster.parties)
            await measure_capacity(cluster, load, sizes, own)
            await measure_throughput(cluster, load, sizes, own)
            await measure_stream(cluster, sizes, own)
            await catch_up(cluster, own)
            await _measure_kills(cluster, sizes, own)
    finally:  # what was measured before a failure is not lost with it
        prefix = "pglog_" if kind == "postgres" else f"pglog_{kind}_"
        report.figures.update({prefix + name: figure for name, figure in own.figures.items()})
        shutil.rmtree(folder / "bodies", ignore_errors=True)
    return own.figures


async def _measure_kills(cluster: LocalCluster, sizes: Sizes, report: Report) -> None:
    log = open_log(cluster.config.log.settings)
    first_offset = await log.end_offset()
    await log.close()
    load = client_load(cluster, "clients")
    load.start()
    kills = [await fail_over(cluster, KILL_CORE if at % 2 else KILL_GROUP) for at in range(sizes.kills)]
    await load.stop()
    report.add("kill_audit", await audit(cluster, [load.history], first_offset), "checked", "nothing lost or double")
    outages_s = [round(kill.outage(load).outage_s, 3) for kill in kills]
    report.figures["kill_outage_s_each"] = outages_s
    report.figures["kill_outage_s_median"] = round(median(outages_s), 3)
    worst_s = max(outages_s)
    shown = f"median {median(outages_s):.2f} s, worst {worst_s:.2f} s"
    report.add("kill_outage_s_max", worst_s, f"{len(kills)} times SIGKILL, outage", shown)


# ---- the log alone ----


async def _measure_bare(cluster: LocalCluster, report: Report) -> None:
    """Reading without applying; other writers killed, or one frozen."""
    report.section("The log on Postgres alone")
    name = "bare"
    await cluster.postgres.ensure_database(name, "postgres")
    dsn = cluster.postgres.dsn(name)
    await install(dsn)
    log = PostgresLog(PostgresLogSettings(conninfo=dsn, single_server=True))
    writer = await log.open_writer()
    for at in range(0, READ_BARE, 2_000):
        writer.append_all([b"%430d" % (at + n) for n in range(2_000)])
        while await log.agreed_end_offset() < at - 20_000:
            await asyncio.sleep(0.01)
    while await log.agreed_end_offset() < READ_BARE:
        await asyncio.sleep(0.01)
    reader, left, began_s = await log.open_reader(0), READ_BARE, perf_counter()
    while left:
        left -= len(await reader.read(5_000, 5.0))
    rate = READ_BARE / (perf_counter() - began_s)
    report.add("pglog_read_per_s", round(rate), "reading without applying", f"{number(rate)} records/s")
    await _measure_others(dsn, reader, writer, report)
    await log.close()


async def _measure_others(dsn: str, reader: LogReader, writer: LogWriter, report: Report) -> None:
    """The read-back of one writer beside three others; then two of those are killed, then the third is frozen."""
    argv = [sys.executable, "-m", "tests.integration.log_postgres.writing", dsn]
    others = [subprocess.Popen([*argv, name], stdout=subprocess.DEVNULL) for name in ("b", "c", "d")]
    try:
        await asyncio.sleep(4.0)
        before, _ = await _probe(reader, writer)
        others[0].send_signal(signal.SIGSTOP)
        frozen, gap_s = await _probe(reader, writer)
        for other in others:
            other.kill()
        killed, _ = await _probe(reader, writer)
    finally:
        for other in others:
            other.kill()
            other.wait()
    for name, took in (("before", before), ("one_frozen", frozen), ("three_killed", killed)):
        p50_ms, p99_ms = took[len(took) // 2] * 1e3, took[len(took) * 99 // 100] * 1e3
        figure = {"p50": round(p50_ms, 2), "p99": round(p99_ms, 2)}
        report.add(f"pglog_read_back_ms_{name}", figure, f"read-back, {name}", f"p50 {p50_ms:.1f}, p99 {p99_ms:.1f} ms")
    report.add(
        "pglog_frozen_stall_ms", round(gap_s * 1e3, 1), "longest stall of a reader, one frozen", f"{gap_s:.3f} s"
    )


async def _probe(reader: LogReader, writer: LogWriter) -> tuple[list[float], float]:
    """Sorted times from append to read back, and the longest time without any record, seconds."""
    took_s, gap_s, last_s = [], 0.0, perf_counter()
    for at in range(PROBES):
        value, began_s = b"probe %d %f" % (at, perf_counter()), perf_counter()
        writer.append(value)
        while True:
            records = await reader.read(5_000, 5.0)
            now_s = perf_counter()
            if records:
                gap_s, last_s = max(gap_s, now_s - last_s), now_s
            if any(found == value for _, found in records):
                break
        took_s.append(now_s - began_s)
    return sorted(took_s), gap_s
