"""Other work takes the processors: nobody is marked down, no lock is lost, and no caller sees an error.

A minute of it; `BUSY_S=600` plays ten.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from time import monotonic, monotonic_ns

import aiohttp
import pytest

from replica.local.cluster import LocalCluster
from tests.faults.recorder import Scenario
from tests.faults.under_load import under_load
from tests.promises import promised

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(1_800),
    pytest.mark.asyncio(loop_scope="session"),
]

BUSY_S = float(os.environ.get("BUSY_S", "60"))
BUSY_PROCESSES = 4
CONNECTIONS = 256
PAUSE_MS = 200  # of each connection between an answer and the next submission
HEALTH_EVERY_S = 0.05
GAP_GOAL_S = 2.5  # the longest stall that is forgiven


@contextmanager
def busy(count: int) -> Iterator[None]:
    """So many processes compute, at this process' own priority."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


@asynccontextmanager
async def health_times(cluster: LocalCluster) -> AsyncIterator[list[float]]:
    """How long each health answer of each replica took meanwhile, in seconds; a connection each, as HAProxy asks."""
    found = list[float]()

    async def ask(url: str) -> None:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
            while True:
                began_s = monotonic()
                async with session.get(url) as answer:
                    await answer.read()
                found.append(monotonic() - began_s)
                await asyncio.sleep(HEALTH_EVERY_S)

    urls = [f"http://{one.host}:{one.health_port}/health/active" for one in cluster.config.replicas]
    tasks = [asyncio.create_task(ask(url)) for url in urls]
    try:
        yield found
        failed = [task.exception() for task in tasks if task.done()]
        promised(not failed, f"a health check got no answer: {failed}")
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.not_on("embedded", "a lease of 0.9 s is not meant for a machine that other work fills")
@pytest.mark.scenario("F55", "other work takes the processors", outage_goal_s=GAP_GOAL_S)
async def test_other_work_marks_nobody_down(cluster: LocalCluster, scenario: Scenario) -> None:
    """Goal: no mark-down, no lock lost, no error. Method: four busy processes of the same priority beside 256
    connections; every attempt of every call is in the history."""
    async with under_load(
        cluster,
        scenario,
        singles=CONNECTIONS,
        batches=0,
        connections_max=CONNECTIONS,
        pause_ms=PAUSE_MS,
        fresh_only=True,
    ) as load:
        before, epoch = await cluster.balancer.servers(), await _epoch(cluster)
        async with health_times(cluster) as took_s:
            began_ns = monotonic_ns()
            with busy(BUSY_PROCESSES):
                await asyncio.sleep(BUSY_S)
            scenario.outage(load, began_ns, monotonic_ns())
        downs = {name: one.downs - before[name].downs for name, one in (await cluster.balancer.servers()).items()}
        promised(not any(downs.values()), f"marked down: {downs}")
        promised(await _epoch(cluster) == epoch, "the lead changed")
    took_s.sort()
    p99_s, longest_s = took_s[len(took_s) * 99 // 100], took_s[-1]
    scenario.fired(
        f"{BUSY_PROCESSES} busy processes for {BUSY_S:g} s; {scenario.summary['answers']}; of {len(took_s)} health"
        f" answers p99 {1_000 * p99_s:.0f} ms, longest {1_000 * longest_s:.0f} ms"
    )
    print(f"\n{scenario.faults[-1]}")
    errors = {code: count for code, count in scenario.summary["answers"].items() if count and code != "NOTARISED"}
    promised(not errors, f"callers saw {errors}")


async def _epoch(cluster: LocalCluster) -> int:
    return max(health.epoch for health in (await cluster.healths()).values() if health is not None)
