"""How long applications are not served when the active of a profile is killed or frozen under their load.

Keys are `profile_<profile>_<fault>_outage_s_each`, `_median` and `_max`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import monotonic_ns

from replica.cli.profiles import Profile
from replica.local.cluster import ClusterSettings, LocalCluster, remove_cluster
from tests.bench.report import Report
from tests.faults.audit import audit
from tests.faults.load import ClientLoad, client_load
from tests.faults.scenarios import (
    AFTER_S,
    BEFORE_S,
    KILL_CORE,
    KILL_GROUP,
    TakeOver,
    fail_over,
    successor_of,
    wait_for_return,
)
from tests.faults.under_load import end_of_log

_SINGLES, _BATCHES = 48, 8  # clients at full load


@dataclass(frozen=True, kw_only=True)
class Faults:
    """How many of each kind."""

    kills: int = 20  # of the whole group and of the core alone, in turn
    kills_with_node: int = 20  # and the log node beside it; none where there are no log nodes
    freezes: int = 10  # of the replica alone and with its log node, in turn
    steady_s: float = 60.0  # of full load without a fault: nobody may be deposed


async def measure_profile_outages(folder: Path, profile: Profile, faults: Faults, report: Report) -> None:
    """A new cluster of three replicas in `folder`, and all faults one after the other. Raises Violation."""
    report.section(f"Outages of the profile {profile.value}, three replicas")
    settings = ClusterSettings(folder=folder, replicas=3, log=profile.log, embedded=profile is Profile.EMBEDDED)
    await remove_cluster(folder)
    async with LocalCluster(settings) as cluster:
        await _measure(cluster, profile, faults, report)


async def _measure(cluster: LocalCluster, profile: Profile, faults: Faults, report: Report) -> None:
    first_offset = await end_of_log(cluster)
    full = await _full_load(cluster, profile, faults.steady_s, report)
    load = client_load(cluster, "clients")
    load.start()
    await load.begun()
    kinds: list[tuple[str, str, int, Callable[[int], Awaitable[TakeOver]]]] = [
        ("kill", "SIGKILL", faults.kills, lambda at: fail_over(cluster, KILL_CORE if at % 2 else KILL_GROUP)),
        ("frozen", "SIGSTOP", faults.freezes, lambda at: freeze(cluster, with_node=bool(at % 2))),
    ]
    if cluster.log_nodes:
        kill = (
            "kill_with_node",
            "SIGKILL with its log node",
            faults.kills_with_node,
            lambda at: fail_over(cluster, lambda replica: cluster.kill(replica.name)),
        )
        kinds.insert(1, kill)
    found: list[tuple[str, str, list[TakeOver]]] = []
    for name, label, count, fault in kinds:
        busy_before = os.getloadavg()[0]
        found.append((name, label, [await fault(at) for at in range(count)]))
        report.line(f"  load of the machine at {label}", f"{busy_before:.1f} to {os.getloadavg()[0]:.1f}")
    await load.stop()
    for name, label, take_overs in found:
        if take_overs:
            _tell(f"profile_{profile.value}_{name}", label, take_overs, load, report)
    checked = await audit(cluster, [full.history, load.history], first_offset)
    report.add(
        f"profile_{profile.value}_outages_audit",
        checked,
        "checked",
        f"{checked['operations']:,} operations, nothing lost or double",
    )


async def _full_load(cluster: LocalCluster, profile: Profile, lasts_s: float, report: Report) -> ClientLoad:
    """As much load as the machine takes, and no fault: how often the active was deposed all the same."""
    load = client_load(cluster, "full-load", singles=_SINGLES, batches=_BATCHES)
    before = await _epoch(cluster)
    load.start()
    await load.begun()
    await asyncio.sleep(lasts_s)
    await load.stop()
    deposed = await _epoch(cluster) - before
    name, busy = f"profile_{profile.value}_false_depositions", os.getloadavg()[0]
    shown = f"{deposed} in {lasts_s:g} s, load of the machine {busy:.1f}, {len(load.successes_ns()):,} calls"
    report.add(name, deposed, "depositions under full load, no fault", shown)
    return load


async def _epoch(cluster: LocalCluster) -> int:
    active = await cluster.wait_for_active()
    health = (await cluster.healths())[active.name]
    return 0 if health is None else health.epoch


def _tell(name: str, label: str, take_overs: list[TakeOver], load: ClientLoad, report: Report) -> None:
    outages_s = [round(take_over.outage(load).outage_s, 3) for take_over in take_overs]
    report.figures[f"{name}_outage_s_each"] = outages_s
    report.figures[f"{name}_outage_s_median"] = round(median(outages_s), 3)
    shown = f"median {median(outages_s):.2f} s, worst {max(outages_s):.2f} s of {len(outages_s)}"
    report.add(f"{name}_outage_s_max", max(outages_s), f"{label} of the active, outage", shown)
    report.line("  each", " ".join(f"{outage_s:.2f}" for outage_s in outages_s))


async def freeze(cluster: LocalCluster, *, with_node: bool) -> TakeOver:
    """Freeze the active, and its log node if wanted, until another replica has served for a while; then thaw both."""
    active = await cluster.wait_for_active()
    node = cluster.log_nodes.get(active.name) if with_node else None
    await asyncio.sleep(BEFORE_S)
    fault_ns = monotonic_ns()
    try:
        active.freeze_group()
        if node is not None:
            node.freeze_group()
        successor = await successor_of(cluster, active)
        await asyncio.sleep(AFTER_S)
        until_ns = monotonic_ns()
    finally:
        if node is not None:
            node.thaw()
        active.thaw()
    await wait_for_return(cluster)
    return TakeOver(active.name, successor.name, fault_ns, until_ns)
