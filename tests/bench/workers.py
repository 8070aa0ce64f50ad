"""Replicas that all serve beside one that serves, and what clients notice when one of three ends: `--only workers`.

Speed: the same cluster with `serving = "one"` and `"all"`, in turns. Faults: a replica is killed or frozen here, and
cut off or killed with the log's leader on machines of their own (worker_machines.py).
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from replica.local.cluster import ClusterSettings, LocalCluster, remove_cluster
from replica.local.process import descendants
from replica.local.replica import ReplicaProcess
from tests.bench.conditions import add_conditions, tell_deployment
from tests.bench.load import BATCH, LoadGenerator
from tests.bench.report import Report
from tests.bench.sizes import Sizes
from tests.bench.throughput import SUBMISSIONS_UNIT
from tests.bench.usage import cpu_s, thread_cpu_s
from tests.bench.worker_faults import Injure, Serving, all_serve, audited, own_clients, play, read_calls, tell_faults
from tests.bench.worker_machines import measure_worker_machines
from tests.faults.scenarios import FREEZE_GROUP, frozen
from tests.faults.under_load import end_of_log

TURNS: tuple[Serving, ...] = ("one", "all")
TURNS_MAX = 3  # of both; each starts a cluster and makes its requests anew, 40 s or so
REPLICAS = 3
SHAPE = replace(BATCH, connections=9)  # three for each worker
MACHINE_CORES = 4  # of a replica's machine, for the throughput that is derived
EACH_OF_KILLS = 10  # one fault of each kind for so many kills of the bench's sizes


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
    """All of it. Raises LoadFailed, Violation, SoftwareMissing."""
    await _measure_speed(folder / "speed", sizes, report)
    await _measure_faults(folder / "faults", sizes, report)
    await measure_worker_machines(folder / "machines", sizes, report)


# ---- speed ----


async def _measure_speed(folder: Path, sizes: Sizes, report: Report) -> None:
    report.section(f"{REPLICAS} replicas on this machine, one serves and all serve, in turns")
    await remove_cluster(folder)
    found: dict[Serving, list[Speed]] = {"one": [], "all": []}
    for turn in range(min(sizes.runs, TURNS_MAX)):
        for serving in TURNS if turn % 2 == 0 else reversed(TURNS):
            async with LocalCluster(_settings(folder, serving)) as cluster:
                if not turn and serving == TURNS[0]:
                    await add_conditions(cluster, report)
                    tell_deployment(cluster, report)
                await all_serve(cluster, serving)
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


# ---- faults ----


@asynccontextmanager
async def _killed(fallen: ReplicaProcess) -> AsyncIterator[None]:
    fallen.kill_group()
    yield


@asynccontextmanager
async def _frozen(fallen: ReplicaProcess) -> AsyncIterator[None]:
    with frozen(fallen, FREEZE_GROUP):
        yield


KINDS: dict[str, Injure] = {
    "other_killed": _killed,
    "other_frozen": _frozen,
    "holder_killed": _killed,
    "holder_frozen": _frozen,
}


async def _measure_faults(folder: Path, sizes: Sizes, report: Report) -> None:
    each = max(1, sizes.kills // EACH_OF_KILLS)
    report.section(f"All of {REPLICAS} replicas serve, and one is killed or frozen, {each} times each")
    await remove_cluster(folder)
    async with LocalCluster(_settings(folder, "all")) as cluster:
        await all_serve(cluster, "all")
        first_offset = await end_of_log(cluster)
        async with AsyncExitStack() as stack:
            own = await own_clients(cluster, stack)
            busy_before = os.getloadavg()[0]
            faults = [
                await play(cluster, kind, f"endpoint-{kind}-{turn}", injure)
                for kind, injure in KINDS.items()
                for turn in range(each)
            ]
            report.line("load of the machine", f"{busy_before:.1f} to {os.getloadavg()[0]:.1f}")
        tell_faults("workers", faults, {name: read_calls(load.history) for name, load in own.items()}, report)
        await audited(cluster, "workers", [*own.values(), *(fault.endpoint for fault in faults)], first_offset, report)


# ---- both ----


def _settings(folder: Path, serving: Serving) -> ClusterSettings:
    return ClusterSettings(folder=folder, replicas=REPLICAS, further={"serving": serving})
