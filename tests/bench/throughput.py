"""Throughput and latency through HAProxy: one active and one following passive, load generator included."""

from __future__ import annotations

from dataclasses import replace

from replica.local.cluster import LocalCluster
from replica.store.postgres.status import read_status
from tests.bench.load import BATCH, SINGLE, LoadGenerator, Shape
from tests.bench.report import Report, quantiles
from tests.bench.sizes import Sizes
from tests.bench.usage import add_cpu, cpu_s, parts_of
from tests.bench.wrk import LoadFailed, LoadResult

SUBMISSIONS_UNIT = "submissions/s"


async def measure_capacity(cluster: LocalCluster, load: LoadGenerator, sizes: Sizes, report: Report) -> None:
    """Single requests at 256 connections."""
    report.section("Through HAProxy, 4 inputs, one active and one following passive")
    await _throughput(cluster, load, SINGLE, "single", sizes, report)


async def measure_throughput(cluster: LocalCluster, load: LoadGenerator, sizes: Sizes, report: Report) -> None:
    """Batches over 8 connections, and latency at one."""
    await _throughput(cluster, load, BATCH, "batch", sizes, report)
    await _latency_alone(cluster, load, sizes, report)


async def measure_full_speed(cluster: LocalCluster, load: LoadGenerator, sizes: Sizes, report: Report) -> None:
    """A long run at full speed, which must cost neither the lock nor a health check. Raises LoadFailed if it does."""
    endpoint = cluster.config.endpoint
    warm = await load.warm_up(endpoint, SINGLE)
    before = await _disturbances(cluster)
    results = await load.measure(endpoint, SINGLE, 1, sizes.full_speed_s, warm)
    after = await _disturbances(cluster)
    lost = {name: after[name] - before[name] for name in before}
    rate = results[0].per_second
    report.add(
        "full_speed_tps", round(rate, 1), f"{sizes.full_speed_s:g} s at full speed", f"{rate:,.0f} submissions/s"
    )
    shown = ", ".join(f"{count} {name}" for name, count in lost.items())
    report.add("full_speed_disturbances", lost, "disturbances in that time", shown)
    if any(lost.values()):
        raise LoadFailed(f"full speed cost {shown}")


async def _disturbances(cluster: LocalCluster) -> dict[str, int]:
    """What went wrong since the cluster was started."""
    active = await cluster.wait_for_active()
    server = (await cluster.haproxy.servers())[active.name]
    epoch = (await read_status(cluster.conninfo)).epoch
    return {"health checks failed": server.checks_failed, "turned away": server.downs, "locks lost": epoch}


async def _throughput(
    cluster: LocalCluster, load: LoadGenerator, shape: Shape, name: str, sizes: Sizes, report: Report
) -> float:
    parts = await parts_of(cluster)

    async def counters() -> dict[str, float]:
        return cpu_s(parts)

    results, used_s = await load.measure_warm(cluster.config.endpoint, shape, sizes.runs, sizes.run_s, counters)
    label = f"{name}, {shape.connections} connections" + (f", {shape.per_body} a batch" if shape.per_body > 1 else "")
    rates = [result.per_second * shape.per_body for result in results]
    middle = report.add_runs(f"{name}_tps_4_inputs", rates, label, SUBMISSIONS_UNIT)
    _add_latency(f"{name}_latency_ms", results, f"{name}, latency of a call", report)
    submissions = sum(result.requests for result in results) * shape.per_body
    used_s["wrk"] = sum(result.cpu_s for result in results) / submissions
    add_cpu(f"{name}_cpu_us_per_submission", used_s, f"{name}, processor time per submission", report)
    return middle


async def _latency_alone(cluster: LocalCluster, load: LoadGenerator, sizes: Sizes, report: Report) -> float:
    shape = replace(SINGLE, connections=1)
    endpoint = cluster.config.endpoint
    warm = await load.warm_up(endpoint, shape)
    results = await load.measure(endpoint, shape, sizes.runs, sizes.run_s, warm)
    medians = [result.latency_ms["p50"] for result in results]
    middle = report.add_runs("latency_ms_p50_one_connection", medians, "one connection, median latency", "ms")
    _add_latency("latency_ms_one_connection", results, "one connection, latency", report)
    return middle


def _add_latency(name: str, results: list[LoadResult], label: str, report: Report) -> None:
    """The quantiles of the run whose median latency is in the middle."""
    middle = sorted(results, key=lambda result: result.latency_ms["p50"])[len(results) // 2]
    report.add(name, middle.latency_ms, label, quantiles(middle.latency_ms))
