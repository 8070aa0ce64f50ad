"""Switchover under load: clients of the client library, through HAProxy, while operators hand over on purpose."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from time import monotonic

from ledger_api.client import NotaryClient
from replica.local.cluster import ClusterSettings, LocalCluster, remove_cluster
from replica.notary.answers import Notarised
from replica.notary.requests import state_ref
from tests.bench.report import Report
from tests.bench.sizes import Sizes
from tests.faults.scenarios import wait_for_return

REPLICAS = 3
CLIENTS = 8
CALM_S = 1.0  # of load before each hand-over, and after it


@dataclass(slots=True)
class Load:
    """What the clients got: when each success came, by the monotonic clock, and everything else."""

    successes_s: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


async def measure_switchovers(folder: Path, sizes: Sizes, report: Report) -> None:
    """Hand over again and again; what counts is what callers of the client library see."""
    report.section(f"Switchover, {REPLICAS} replicas, {CLIENTS} clients of the client library through HAProxy")
    await remove_cluster(folder)
    settings = ClusterSettings(folder=folder, replicas=REPLICAS)
    async with LocalCluster(settings) as cluster, submitting(cluster) as load:
        outages_s = [await hand_over(cluster, load) for _ in range(sizes.switchovers)]
    report.add_runs("switchover_outage_s", outages_s, f"{len(outages_s)} times switchover, outage", "s")
    report.add("switchover_outage_s_median", report.figures["switchover_outage_s"], "  its median", "see above")
    report.add("switchover_outage_s_worst", round(max(outages_s), 3), "  its worst", f"{max(outages_s):.3f} s")
    report.add("switchover_errors", len(load.errors), "errors that callers saw", f"{len(load.errors)}")
    if load.errors:
        raise RuntimeError(f"a switchover was noticed: {load.errors[:3]}")


async def hand_over(cluster: LocalCluster, load: Load) -> float:
    """One switchover by the operators' command, to whichever replica comes; the longest pause around it."""
    await wait_for_return(cluster)
    await asyncio.sleep(CALM_S)
    asked_at_s = monotonic()
    argv = [sys.executable, "-m", "replica.cli", "switchover", "--json", "--config", str(cluster.config_path)]
    process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    printed, _ = await process.communicate()
    outcome = json.loads(printed)
    if not outcome["done"]:
        raise RuntimeError(outcome["text"])
    ended_at_s = monotonic()
    await asyncio.sleep(CALM_S)
    return longest_pause_s(load.successes_s, asked_at_s, ended_at_s)


def longest_pause_s(successes_s: Iterable[float], from_s: float, to_s: float) -> float:
    """The longest time between two successes that overlaps the given time."""
    pauses = [later - earlier for earlier, later in pairwise(sorted(successes_s)) if later > from_s and earlier < to_s]
    if not pauses:
        raise RuntimeError("no success before and after: a run without load tells nothing")
    return max(pauses)


@asynccontextmanager
async def submitting(cluster: LocalCluster) -> AsyncIterator[Load]:
    """Clients that submit without a break while the context lasts."""
    load, stopping = Load(), asyncio.Event()

    async def submit(client: NotaryClient) -> None:
        while not stopping.is_set():
            answer = await client.submit(cluster.parties[0].sign(os.urandom(32), [state_ref(os.urandom(32), 0)]))
            if isinstance(answer, Notarised):
                load.successes_s.append(monotonic())
            else:
                load.errors.append(repr(answer))

    async with NotaryClient(cluster.endpoint) as client, asyncio.TaskGroup() as group:
        for _ in range(CLIENTS):
            group.create_task(submit(client))
        try:
            yield load
        finally:
            stopping.set()
