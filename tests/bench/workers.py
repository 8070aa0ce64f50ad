"""Speed of a cluster with `serving = "one"` beside the same with `"all"`, in turns: `--only workers`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Literal

from replica.local.cluster import ClusterSettings, LocalCluster, remove_cluster
from replica.local.process import descendants, until
from replica.local.replica import ReplicaProcess
from tests.bench.conditions import add_conditions, tell_deployment
from tests.bench.load import BATCH, LoadGenerator
from tests.bench.report import Report
from tests.bench.sizes import Sizes
from tests.bench.throughput import SUBMISSIONS_UNIT
from tests.bench.usage import cpu_s, thread_cpu_s

Serving = Literal["one", "all"]
TURNS: tuple[Serving, ...] = ("one", "all")
TURNS_MAX = 3  # of both; each starts a cluster and makes its requests anew, 40 s or so
REPLICAS = 3
SHAPE = replace(BATCH, connections=9)  # three for each worker
MACHINE_CORES = 4  # of a replica's machine, for the throughput that is derived
ALL_SERVE_MAX_S = 120.0


@dataclass(frozen=True, slots=True)
class Speed:
    """A run: submissions a second; for each, seconds of the busiest thread of all cores and of the busiest replica."""

    per_second: float
    thread_s: float
    replica_s: float

    @property
    def machine_s(self) -> float:
        """What one submission takes of the machine that ends first, each replica on one with MACHINE_CORES."""
        return max(self.thread_s, self.replica_s / MACHINE_CORES)


async def measure_workers(folder: Path, sizes: Sizes, report: Report) -> None:
    """Both ways to serve, in turns. Raises LoadFailed."""
    report.section(f"{REPLICAS} replicas on this machine, one serves and all serve, in turns")
    await remove_cluster(folder)
    found: dict[Serving, list[Speed]] = {"one": [], "all": []}
    for turn in range(min(sizes.runs, TURNS_MAX)):
        for serving in TURNS if turn % 2 == 0 else reversed(TURNS):
            async with LocalCluster(_settings(folder, serving)) as cluster:
                if not turn and serving == TURNS[0]:
                    await add_conditions(cluster, report)
                    tell_deployment(cluster, report)
                await _all_serve(cluster, serving)
                found[serving].append(await _speed(cluster, LoadGenerator(folder / "bodies", cluster.parties), sizes))
    for serving, speeds in found.items():
        name, label = f"workers_{serving}", f"{serving} serve{'s' if serving == 'one' else ''}"
        report.add_runs(f"{name}_batch_tps", [each.per_second for each in speeds], label, SUBMISSIONS_UNIT)
        report.add_runs(f"{name}_thread_us", [1e6 * each.thread_s for each in speeds], "  busiest thread", "µs")
        report.add_runs(f"{name}_replica_us", [1e6 * each.replica_s for each in speeds], "  busiest replica", "µs")
    for key, label, value in ratios(found):
        report.add(key, round(value, 3), label, f"{value:.2f}")


def ratios(found: Mapping[Serving, list[Speed]]) -> list[tuple[str, str, float]]:
    """Key, label and value of each comparison, all over one; a turn is compared with its neighbour."""
    turns = list(zip(found["one"], found["all"], strict=True))
    derived = f"three machines of {MACHINE_CORES} cores, derived: all over one"
    compared = (
        ("throughput", "throughput, all over one", [a.per_second / o.per_second for o, a in turns]),
        ("busiest_thread", "busiest thread, all over one", [a.thread_s / o.thread_s for o, a in turns]),
        ("derived", derived, [o.machine_s / a.machine_s for o, a in turns]),
    )
    return [(f"workers_{name}_ratio", label, median(values)) for name, label, values in compared]


async def _speed(cluster: LocalCluster, load: LoadGenerator, sizes: Sizes) -> Speed:
    """A run of batches through the endpoint."""
    pids = {name: one.pid for name, one in cluster.replicas.items()}
    groups = {name: _processes(one) for name, one in cluster.replicas.items()}

    async def counters() -> dict[str, float]:
        threads = {
            f"thread {name} {number}": used_s
            for name, pid in pids.items()
            for number, used_s in thread_cpu_s(pid).items()
        }
        return threads | cpu_s(groups)

    results, each = await load.measure_warm(cluster.config.endpoint, SHAPE, 1, sizes.run_s, counters)
    threads_s = [used_s for name, used_s in each.items() if name.startswith("thread ")]
    return Speed(results[0].per_second * SHAPE.per_body, max(threads_s), max(each[name] for name in groups))


def _processes(replica: ReplicaProcess) -> list[int]:
    return [replica.pid, *descendants(replica.pid)]


def _settings(folder: Path, serving: Serving) -> ClusterSettings:
    return ClusterSettings(folder=folder, replicas=REPLICAS, further={"serving": serving})


async def _all_serve(cluster: LocalCluster, serving: Serving) -> None:
    """Return once everybody serves who is to serve, and the others could take over. Raises TimeoutError."""

    async def there() -> bool:
        healths = (await cluster.healths()).values()
        if serving == "one":
            return all(health is not None and health.ready for health in healths)
        servers = await cluster.balancer.servers()
        return all(health is not None and health.active for health in healths) and all(
            one.up for one in servers.values()
        )

    async with asyncio.timeout(ALL_SERVE_MAX_S):
        await until(there)
