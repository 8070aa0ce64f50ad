"""The whole notary on log nodes of our own beside the same on Kafka with three brokers, and its outages: `--only raft`.

Keys `raft_notary_*` are of the log nodes, `raft_notary_kafka_*` of Kafka, `raft_*_ratio` the one over the other.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from time import monotonic_ns

from replica.local.cluster import ClusterSettings, LocalCluster, LogKind, remove_cluster
from replica.log.open import open_log
from tests.bench.load import LoadGenerator
from tests.bench.report import Report
from tests.bench.sizes import Sizes
from tests.bench.stream import measure_stream
from tests.bench.throughput import measure_throughput
from tests.faults.audit import audit
from tests.faults.load import client_load
from tests.faults.scenarios import AFTER_S, BEFORE_S, TakeOver, fail_over, successor_of, wait_for_return

KINDS: tuple[LogKind, ...] = ("kafka", "raft")
BROKERS = 3
GOALS = {"batch": "batch_tps_4_inputs", "stream": "stream_tps_4_inputs"}


async def measure_log_nodes_notary(folder: Path, sizes: Sizes, report: Report) -> None:
    """Both kinds, one after the other; then kills and freezes on the log nodes. Raises Violation."""
    found = {kind: await _of_kind(folder, kind, sizes, report) for kind in KINDS}
    report.section("Log nodes over Kafka with three brokers")
    for name, figure in GOALS.items():
        ours, theirs = (float(str(found[kind][figure])) for kind in ("raft", "kafka"))
        report.add(f"raft_{name}_ratio", round(ours / theirs, 3), name, f"{ours / theirs:.2f}")


async def _of_kind(folder: Path, kind: LogKind, sizes: Sizes, report: Report) -> Mapping[str, object]:
    brokers = f" with {BROKERS} brokers" if kind == "kafka" else ""
    report.section(f"The whole notary, three replicas, its log on {kind}{brokers}")
    settings = ClusterSettings(folder=folder / kind, replicas=3, brokers=BROKERS, log=kind)
    await remove_cluster(settings.folder)
    own = Report()
    try:
        async with LocalCluster(settings) as cluster:
            load = LoadGenerator(folder / "bodies", cluster.parties)
            await measure_throughput(cluster, load, sizes, own)
            await measure_stream(cluster, sizes, own)
            if kind == "raft":
                await measure_outages(cluster, sizes, report)
    finally:  # what was measured before a failure is not lost with it
        prefix = "raft_notary_" if kind == "raft" else f"raft_notary_{kind}_"
        report.figures.update({prefix + name: figure for name, figure in own.figures.items()})
        shutil.rmtree(folder / "bodies", ignore_errors=True)
    return own.figures


async def measure_outages(cluster: LocalCluster, sizes: Sizes, report: Report) -> None:
    """SIGKILL and SIGSTOP of the active with the log node beside it, under clients. Raises Violation."""
    log = open_log(cluster.config.log.settings)
    first_offset = await log.end_offset()
    await log.close()
    load = client_load(cluster, "clients")
    load.start()
    kills = [await fail_over(cluster, lambda replica: cluster.kill(replica.name)) for _ in range(sizes.kills)]
    frozen = [await _freeze(cluster) for _ in range(2 * sizes.freezes)]
    await load.stop()
    for name, label, faults in (("kill", "SIGKILL", kills), ("frozen", "SIGSTOP", frozen)):
        outages_s = [round(fault.outage(load).outage_s, 3) for fault in faults]
        report.figures[f"raft_{name}_outage_s_each"] = outages_s
        report.figures[f"raft_{name}_outage_s_median"] = round(median(outages_s), 3)
        shown = f"median {median(outages_s):.2f} s, worst {max(outages_s):.2f} s of {len(faults)}"
        report.add(f"raft_{name}_outage_s_max", max(outages_s), f"{label} of the active with its node, outage", shown)
    found = await audit(cluster, [load.history], first_offset)
    report.add("raft_outages_audit", found, "checked", f"{found['operations']:,} operations, nothing lost or double")


async def _freeze(cluster: LocalCluster) -> TakeOver:
    active = await cluster.wait_for_active()
    node = cluster.log_nodes[active.name]
    await asyncio.sleep(BEFORE_S)
    fault_ns = monotonic_ns()
    try:
        active.freeze_group()
        node.freeze_group()
        successor = await successor_of(cluster, active)
        await asyncio.sleep(AFTER_S)
        until_ns = monotonic_ns()
    finally:
        node.thaw()
        active.thaw()
    await wait_for_return(cluster)
    return TakeOver(active.name, successor.name, fault_ns, until_ns)
