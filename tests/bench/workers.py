"""Replicas that all serve beside one that serves, and what clients notice when one of three ends: `--only workers`.

Speed: the same cluster with `serving = "one"` and `"all"`, in turns. Faults: each replica has clients of its own, and
the endpoint has some, each with one call at a time; a replica is killed or frozen. Waits after a fault are
compared with those before it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from time import monotonic_ns
from typing import Literal

from replica.checker.history import read_history
from replica.local.cluster import ClusterSettings, LocalCluster, remove_cluster
from replica.local.process import descendants, until
from replica.local.replica import ReplicaProcess
from tests.bench.conditions import add_conditions, tell_deployment
from tests.bench.load import BATCH, LoadGenerator
from tests.bench.report import Report
from tests.bench.sizes import Sizes
from tests.bench.throughput import SUBMISSIONS_UNIT
from tests.bench.usage import cpu_s, thread_cpu_s
from tests.bench.worker_calls import (
    Call,
    back_after_s,
    between,
    calls,
    longest_s,
    quantile_s,
    unanswered,
    whole,
    within,
)
from tests.faults.audit import audit
from tests.faults.load import ClientLoad, client_load
from tests.faults.under_load import end_of_log

Serving = Literal["one", "all"]
TURNS: tuple[Serving, ...] = ("one", "all")
REPLICAS = 3
SHAPE = replace(BATCH, connections=9)  # three for each worker
MACHINE_CORES = 4  # of a replica's machine, for the throughput that is derived
BEFORE_S = AFTER_S = 3.0  # before and after a fault, which are compared
CALM_S = 5.0  # before these, until the last one is forgotten: clients of a fallen replica wait between their attempts
ALL_SERVE_MAX_S = 120.0
OWN, ENDPOINT = 4, 6  # clients of each replica, of the endpoint
PAUSE_MS = 10  # between an answer and the next call: waits are to be those of the notary, not of a full machine


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


@dataclass(frozen=True, slots=True)
class Fault:
    """What was done to whom, and the times around it."""

    kind: str
    fallen: str
    fault_ns: int
    endpoint: ClientLoad  # clients of the endpoint, new for each fault, so that some are behind the replica that falls

    @property
    def before(self) -> tuple[int, int]:
        """The undisturbed time."""
        return self.fault_ns - int(BEFORE_S * 1e9), self.fault_ns - 1

    @property
    def after(self) -> tuple[int, int]:
        """The time that the fault may disturb."""
        return self.fault_ns, self.fault_ns + int(AFTER_S * 1e9)


async def measure_workers(folder: Path, sizes: Sizes, report: Report) -> None:
    """Both. Raises LoadFailed, Violation."""
    await _measure_speed(folder / "speed", sizes, report)
    await _measure_faults(folder / "faults", sizes, report)


# ---- speed ----


async def _measure_speed(folder: Path, sizes: Sizes, report: Report) -> None:
    report.section(f"{REPLICAS} replicas on this machine, one serves and all serve, in turns")
    await remove_cluster(folder)
    found: dict[Serving, list[Speed]] = {"one": [], "all": []}
    for turn in range(sizes.runs):
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


async def _measure_faults(folder: Path, sizes: Sizes, report: Report) -> None:
    each = max(1, sizes.kills // 4)
    report.section(f"All of {REPLICAS} replicas serve, and one is killed or frozen, {each} times each")
    await remove_cluster(folder)
    async with LocalCluster(_settings(folder, "all")) as cluster:
        await all_serve(cluster, "all")
        first_offset = await end_of_log(cluster)
        own = {name: _load(cluster, name, one, OWN) for name, one in cluster.replicas.items()}
        async with AsyncExitStack() as stack:
            for load in own.values():
                load.start()
                stack.push_async_callback(load.stop)
                await load.begun()
            busy_before = os.getloadavg()[0]
            kinds = ("other_killed", "other_frozen", "holder_killed", "holder_frozen")
            faults = [await _play(cluster, kind, f"endpoint-{kind}-{turn}") for kind in kinds for turn in range(each)]
            report.line("load of the machine", f"{busy_before:.1f} to {os.getloadavg()[0]:.1f}")
        tell_faults(faults, {name: read_calls(load.history) for name, load in own.items()}, report)
        histories = [load.history for load in (*own.values(), *(fault.endpoint for fault in faults))]
        checked = await audit(cluster, histories, first_offset)
        shown = f"{checked['operations']:,} operations, nothing lost or double"
        report.add("workers_audit", checked, "checked", shown)


def _load(cluster: LocalCluster, name: str, behind: ReplicaProcess | None, clients: int) -> ClientLoad:
    changes = {"singles": clients, "batches": 0, "pause_ms": PAUSE_MS, "fresh_only": True}
    return client_load(cluster, f"clients-{name}", behind, **changes)


def read_calls(history: Path) -> list[Call]:
    """The submissions of a client that has ended."""
    with history.open("rb") as stream:
        return list(calls(read_history(stream, history.name)))


async def _play(cluster: LocalCluster, kind: str, name: str) -> Fault:
    """One fault; returns once all serve again. `name`: of the endpoint's clients meanwhile."""
    holder = await cluster.wait_for_active()
    others = [one for one in cluster.replicas.values() if one is not holder]
    fallen = holder if kind.startswith("holder") else others[0]
    endpoint = _load(cluster, name, None, ENDPOINT)
    endpoint.start()
    await endpoint.begun()
    await asyncio.sleep(CALM_S + BEFORE_S)
    fault_ns = monotonic_ns()
    if kind.endswith("killed"):
        fallen.kill_group()
        await asyncio.sleep(AFTER_S)
    else:
        fallen.freeze_group()
        try:
            await asyncio.sleep(AFTER_S)
        finally:
            fallen.thaw()
    await all_serve(cluster, "all")
    await endpoint.stop()
    return Fault(kind, fallen.name, fault_ns, endpoint)


def tell_faults(faults: Sequence[Fault], own: Mapping[str, list[Call]], report: Report) -> None:
    """What the clients of the others noticed, and when those of the fallen one were back."""
    calm = [call for fault in faults for found in own.values() for call in within(found, *fault.before)]
    _tell_gaps("workers_undisturbed", "before the faults, all clients", calm, report)
    every: list[Call] = []
    for kind in dict.fromkeys(fault.kind for fault in faults):
        alike = [fault for fault in faults if fault.kind == kind]
        gaps = [
            call
            for fault in alike
            for name, found in own.items()
            if name != fault.fallen
            for call in between(found, *fault.after)
        ]
        every += gaps
        _tell_gaps(f"workers_{kind}_survivor", f"{kind.replace('_', ' ')}: clients of the others", gaps, report)
        back_s = [round(back_after_s(whole(read_calls(one.endpoint.history)), *one.after), 3) for one in alike]
        shown = f"median {median(back_s):.2f} s, worst {max(back_s):.2f} s of {len(back_s)}"
        report.add(f"workers_{kind}_back_s_max", max(back_s), "  clients of the endpoint, back after", shown)
        report.figures[f"workers_{kind}_back_s_each"] = back_s
    _tell_gaps("workers_survivor", "all faults: clients of the others", every, report)


def _tell_gaps(name: str, label: str, found: list[Call], report: Report) -> None:
    longest_ms, usual_ms = 1e3 * longest_s(found), 1e3 * quantile_s(found, 0.999)
    shown = f"longest {longest_ms:.0f} ms, p99.9 {usual_ms:.0f} ms of {len(found):,}, {unanswered(found)} errors"
    report.add(f"{name}_gap_ms_max", round(longest_ms, 1), label, shown)
    report.figures[f"{name}_gap_ms_p999"] = round(usual_ms, 1)
    report.figures[f"{name}_errors"] = unanswered(found)


# ---- both ----


def _settings(folder: Path, serving: Serving) -> ClusterSettings:
    return ClusterSettings(folder=folder, replicas=REPLICAS, further={"serving": serving})


async def all_serve(cluster: LocalCluster, serving: Serving) -> None:
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
