"""A real replica at three times its log's capacity: bounded, fair, within its estimates, nothing lost, and normal
afterwards.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from time import monotonic

import msgspec
import pytest
import pytest_asyncio

from ledger_api.client import NotaryClient
from replica.local.cluster import ClusterSettings, LocalCluster, remove_cluster
from replica.notary.answers import Notarised
from replica.notary.codes import Code
from tests.bench.usage import memory_mib, parts_of
from tests.ends import guarded
from tests.faults.applications import ledger_end
from tests.faults.audit import wait_until_published
from tests.faults.open_loop import OpenLoop, admitted, quantile, refused
from tests.faults.slow_log import RATE_VARIABLE
from tests.integration.test_workers import all_serve
from tests.log_kind import is_embedded, log_of
from tests.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]

CAPACITY_PER_S = 200.0
HEAVY_PER_S, LIGHT_PER_S = 540.0, 60.0  # three times the capacity together; the light user keeps to a fair share
WARM_UP_S = 3.0  # by then there are batches to estimate from
MEMORY_GROWTH_MAX_MIB = 60.0  # of core and two front ends together
LATENCY_MAX_S = 0.25
REPORT = Path("build/overload.json")
WORKER_PER_S, OFFERED_PER_S = 60.0, 240.0  # of each of one to three workers; of all clients together
WORKERS_REPORT = Path("build/overload-workers.jsonl")
CORE = {
    "in_flight_max": 1_200,
    "user_queue_max": 600,
    "pipeline_max": 100,
    "admit_batch_max": 25,
    "interim_from_s": 1e-6,  # every client gets an estimate, so that each can be compared with the time taken
}


class Figures(msgspec.Struct, kw_only=True):
    """What a run found; `build/overload.json` has it."""

    duration_s: float
    offered: int
    admitted: int
    per_s_over_capacity: float
    wait_over_estimate_p99: float
    heavy_wait_median_s: float
    light_wait_median_s: float
    memory_growth_mib: float

    def write(self) -> None:
        """Before anything is asserted, so that a run that fails can be looked at."""
        found = {name: round(value, 3) for name, value in msgspec.structs.asdict(self).items()}
        REPORT.parent.mkdir(exist_ok=True)
        REPORT.write_text(json.dumps(found, indent=2) + "\n")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def slow_cluster(request: pytest.FixtureRequest) -> AsyncIterator[LocalCluster]:
    """One replica on real servers, with a log that takes `CAPACITY_PER_S` records a second."""
    parent = Path(tempfile.mkdtemp(prefix="notary-overload-"))
    parent.chmod(0o755)
    settings = ClusterSettings(
        folder=parent / "cluster",
        replicas=1,
        log=log_of(request.config),
        embedded=is_embedded(request.config),
        further={"core": CORE},
    )
    try:
        async with guarded(LocalCluster(settings)) as cluster:
            (replica,) = cluster.replicas.values()
            await replica.stop()
            environment = {RATE_VARIABLE: str(CAPACITY_PER_S)}
            replica.install(Path(sys.executable), cluster.config_path, environment, "tests.faults.slow_log")
            replica.start()
            await cluster.wait_for_active()
            yield cluster
        await remove_cluster(parent / "cluster")
    finally:
        shutil.rmtree(parent, ignore_errors=True)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "duration_s", [pytest.param(15.0, marks=pytest.mark.short), pytest.param(60.0, marks=pytest.mark.slow)]
)
async def test_three_times_the_capacity(slow_cluster: LocalCluster, duration_s: float) -> None:
    """Goal: throughput stays, memory is bounded, who was admitted is answered within the estimate, nothing is lost,
    and latency is back afterwards. Method: an open loop over two streams, on real front ends, core and servers."""
    cluster, party = slow_cluster, slow_cluster.parties[0]
    before = await ledger_end(cluster.endpoint)
    heavy = OpenLoop(cluster.endpoint, party, "heavy", HEAVY_PER_S)
    light = OpenLoop(cluster.endpoint, party, "light", LIGHT_PER_S)
    began_s = asyncio.get_running_loop().time()
    memory = MemoryWatch(cluster)
    async with memory, asyncio.TaskGroup() as group:
        for load in (heavy, light):
            group.create_task(load.run(duration_s))

    taken = admitted([heavy, light])
    assert len(taken) + len(refused([heavy, light])) == len(heavy.asked) + len(light.asked)
    assert {answer.code for answer in refused([heavy])} == {Code.USER_OVERLOADED.name}
    assert all(answer.retry_after_s > 0 for answer in refused([heavy]))
    assert not refused([light])
    inside = [asked for asked in taken if WARM_UP_S <= asked.answered_s - began_s < duration_s]
    told = [asked for asked in taken if asked.at_s - began_s >= WARM_UP_S]
    figures = Figures(
        duration_s=duration_s,
        offered=len(heavy.asked) + len(light.asked),
        admitted=len(taken),
        per_s_over_capacity=len(inside) / (duration_s - WARM_UP_S) / CAPACITY_PER_S,
        wait_over_estimate_p99=quantile([(a.answered_s - a.at_s) / a.told_s for a in told], 0.99),
        heavy_wait_median_s=quantile([a.answered_s - a.at_s for a in admitted([heavy])], 0.5),
        light_wait_median_s=quantile([a.answered_s - a.at_s for a in admitted([light])], 0.5),
        memory_growth_mib=memory.growth_mib,
    )
    figures.write()
    assert figures.per_s_over_capacity >= 0.9
    assert figures.wait_over_estimate_p99 <= 1
    assert figures.light_wait_median_s < 0.5 * figures.heavy_wait_median_s
    assert figures.memory_growth_mib < MEMORY_GROWTH_MAX_MIB

    await wait_until_published(cluster)
    assert await ledger_end(cluster.endpoint) - before == len(taken)
    await check_latency_is_back(cluster)


class OfWorkers(msgspec.Struct, kw_only=True):
    """What one of these runs found, with so many workers; `build/overload-workers.jsonl` has them."""

    workers: int
    offered_per_s: float
    admitted_per_s: float
    heavy_wait_median_s: float
    light_wait_median_s: float
    light_refused: int


@pytest.mark.slow
@pytest.mark.only_one_serves("it starts clusters of its own, whose replicas all serve")
@pytest.mark.parametrize("workers", [1, 2, 3])
async def test_more_workers_admit_more_under_overload(workers: int, request: pytest.FixtureRequest) -> None:
    """Goal: adding workers helps where a worker's way to the log is the narrow part, and users stay apart. Method: each
    worker's process takes `WORKER_PER_S` records a second to the log, which stands for a limit of the worker and not of
    the log; always the same load, more than three times that, with one stream of each user at each worker."""
    parent = Path(tempfile.mkdtemp(prefix="notary-overload-"))
    parent.chmod(0o755)
    further = {"serving": "all", "core": CORE | {"pipeline_max": 25}}  # 0.4 s of every wait
    settings = ClusterSettings(
        folder=parent / "cluster",
        replicas=workers,
        log=log_of(request.config),
        embedded=is_embedded(request.config),
        further=further,
    )
    try:
        async with guarded(LocalCluster(settings)) as cluster:
            for replica in cluster.replicas.values():
                await replica.stop()
                environment = {RATE_VARIABLE: str(WORKER_PER_S)}
                replica.install(Path(sys.executable), cluster.config_path, environment, "tests.faults.slow_log")
                replica.start()
            await eventually(lambda: all_serve(cluster), timeout_s=60.0)
            await asyncio.sleep(2.0)  # each has seen the others serve
            before = await ledger_end(cluster.endpoint)
            endpoints = [f"http://{one.address.host}:{one.address.api_port}" for one in cluster.replicas.values()]
            party = cluster.parties[0]
            heavy = [OpenLoop(one, party, "heavy", 0.9 * OFFERED_PER_S / workers) for one in endpoints]
            light = [OpenLoop(one, party, "light", 0.1 * OFFERED_PER_S / workers) for one in endpoints]
            began_s, duration_s = asyncio.get_running_loop().time(), 20.0
            async with asyncio.TaskGroup() as group:
                for load in (*heavy, *light):
                    group.create_task(load.run(duration_s))
            taken = admitted([*heavy, *light])
            inside = [asked for asked in taken if WARM_UP_S <= asked.answered_s - began_s < duration_s]
            found = OfWorkers(
                workers=workers,
                offered_per_s=OFFERED_PER_S,
                admitted_per_s=len(inside) / (duration_s - WARM_UP_S),
                heavy_wait_median_s=quantile([a.answered_s - a.at_s for a in admitted(heavy)], 0.5),
                light_wait_median_s=quantile([a.answered_s - a.at_s for a in admitted(light)], 0.5),
                light_refused=len(refused(light)),
            )
            with WORKERS_REPORT.open("a") as report:
                report.write(json.dumps(msgspec.to_builtins(found)) + "\n")
            print(found)
            assert {answer.code for answer in refused(heavy)} <= {Code.USER_OVERLOADED.name}
            assert found.admitted_per_s >= 0.9 * workers * WORKER_PER_S
            assert found.light_refused == 0
            assert found.light_wait_median_s < 0.5 * found.heavy_wait_median_s
            await wait_until_published(cluster)
            assert await ledger_end(cluster.endpoint) - before == len(taken)
        await remove_cluster(parent / "cluster")
    finally:
        shutil.rmtree(parent, ignore_errors=True)


async def check_latency_is_back(cluster: LocalCluster) -> None:
    """A submission alone waits for no other."""
    took_s = []
    async with NotaryClient(cluster.endpoint) as client:
        for _ in range(20):
            began_s = monotonic()
            assert isinstance(await client.submit(cluster.parties[0].sign(os.urandom(32))), Notarised)
            took_s.append(monotonic() - began_s)
    assert quantile(took_s, 0.5) < LATENCY_MAX_S


class MemoryWatch:
    """How much core and front ends grew between the warm-up and the end of a block."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.growth_mib = math.inf
        self._cluster = cluster
        self._first: asyncio.Task[float] | None = None

    async def __aenter__(self) -> None:
        self._first = asyncio.create_task(self._used_mib(WARM_UP_S))

    async def __aexit__(self, *_: object) -> None:
        assert self._first is not None
        self.growth_mib = await self._used_mib(0.0) - await self._first

    async def _used_mib(self, later_s: float) -> float:
        await asyncio.sleep(later_s)
        parts = await parts_of(self._cluster)
        return sum(memory_mib({part: parts[part] for part in ("active core", "active front ends")}).values())
