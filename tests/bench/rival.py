"""The same workload on the obvious alternative (alternative.py), behind the same front ends and HAProxy.

What this adds to the figures of ours, which must be in the report already: the ratios.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from psycopg.conninfo import make_conninfo

from haproxy.render import Endpoint, HaproxySettings, ReplicaAddress
from replica.local.cluster import LocalCluster
from replica.local.haproxy import HaproxyServer
from replica.local.participant import ROLE
from replica.local.ports import LOOPBACK, PortReservation
from replica.local.process import Command, ManagedProcess, descendants
from tests.bench.load import BATCH, SINGLE, LoadGenerator, Shape
from tests.bench.report import Report
from tests.bench.sizes import Sizes
from tests.bench.throughput import SUBMISSIONS_UNIT
from tests.bench.usage import Parts, add_cpu, cpu_s, with_descendants

DATABASE = "alternative"
READY_MAX_S = 30.0
RATIOS = {
    "postgres_single_ratio": "single, ours over the alternative",
    "postgres_batch_ratio": "batch, ours over the alternative",
    "stream_vs_postgres_batch": "our streams over its batches",
    "stream_cpu_ratio": "processor time, streamed over its batched",
}
BATCH_MAX = 1_000


async def measure_rival(cluster: LocalCluster, load: LoadGenerator, sizes: Sizes, report: Report) -> None:
    """Single requests and batches, each with the pool that does best, and the ratios to ours in this run.

    Postgres is the cluster's own server; the replicas must have been stopped. Raises LoadFailed.
    """
    report.section("The alternative: a Postgres table with a unique key, behind the same front ends and HAProxy")
    single = await _measure(cluster, load, SINGLE, "single", sizes, report)
    batch = await _measure(cluster, load, BATCH, "batch", sizes, report)
    for name, value in ratios(report.figures, single, batch).items():
        report.add(name, value, RATIOS[name], f"{value:.2f}")


@dataclass(frozen=True, slots=True)
class Variant:
    """A form of the alternative: so many connections to Postgres, so many requests in a transaction at most."""

    connections: int
    batch_max: int

    def __str__(self) -> str:
        each = "one request a transaction" if self.batch_max == 1 else "batched"
        return f"pool of {self.connections}, {each}"


@dataclass(frozen=True, slots=True)
class Rated:
    """The alternative under one load: submissions a second, and processor time of all its parts for each."""

    tps: float
    cpu_us: float


def ratios(ours: Mapping[str, Any], single: Rated, batch: Rated) -> dict[str, float]:
    """Ours, by the names in the report, over the alternative."""
    streamed_us = sum(ours["stream_cpu_us_per_submission"].values())
    found = {
        "postgres_single_ratio": ours["single_tps_4_inputs"] / single.tps,
        "postgres_batch_ratio": ours["batch_tps_4_inputs"] / batch.tps,
        "stream_vs_postgres_batch": ours["stream_tps_4_inputs"] / batch.tps,
        "stream_cpu_ratio": streamed_us / batch.cpu_us,
    }
    return {name: round(value, 3) for name, value in found.items()}


async def variants(cluster: LocalCluster, load: LoadGenerator, sizes: Sizes, report: Report) -> list[Variant]:
    """Both forms of the alternative, a transaction per request and as batched as possible, each with its best pool."""
    return [
        await _best(cluster, load, SINGLE, "single", sizes, report),
        await _best(cluster, load, BATCH, "batch", sizes, report),
    ]


async def _best(
    cluster: LocalCluster, load: LoadGenerator, shape: Shape, name: str, sizes: Sizes, report: Report
) -> Variant:
    """The form for a load, with the pool that does best. It is tried once in a run of the bench."""
    batch_max = BATCH_MAX if shape is BATCH else 1
    key = f"postgres_{name}_connections"
    known = report.figures.get(key)
    if isinstance(known, int):
        return Variant(known, batch_max)
    await cluster.postgres.ensure_database(DATABASE, ROLE)
    tried: dict[int, float] = {}
    for pool in sizes.rival_batch_pools if shape is BATCH else sizes.rival_pools:
        async with alternative(cluster, Variant(pool, batch_max)) as (endpoint, _):
            await load.warm_up(endpoint, shape)
            tried[pool] = await load.warm_up(endpoint, shape)
    shown = ", ".join(f"{pool}: {rate * shape.per_body:,.0f}" for pool, rate in tried.items())
    report.line(f"{name}, pools tried", shown)
    report.figures[key] = best = max(tried, key=lambda pool: tried[pool])
    return Variant(best, batch_max)


async def _measure(
    cluster: LocalCluster, load: LoadGenerator, shape: Shape, name: str, sizes: Sizes, report: Report
) -> Rated:
    """One load, on the form that does best."""
    best = await _best(cluster, load, shape, name, sizes, report)
    async with alternative(cluster, best) as (endpoint, parts):

        async def counters() -> dict[str, float]:
            return cpu_s(parts)

        results, used_s = await load.measure_warm(endpoint, shape, sizes.runs, sizes.run_s, counters)
    rates = [result.per_second * shape.per_body for result in results]
    tps = report.add_runs(f"postgres_{name}_tps_4_inputs", rates, f"{name}, {best}", SUBMISSIONS_UNIT)
    each_us = add_cpu(
        f"postgres_{name}_cpu_us_per_submission", used_s, f"{name}, processor time per submission", report
    )
    return Rated(tps, sum(each_us.values()))


@asynccontextmanager
async def alternative(cluster: LocalCluster, variant: Variant) -> AsyncIterator[tuple[Endpoint, Parts]]:
    """The alternative behind an HAProxy of its own, on the tables that it left the last time; its processes."""
    with PortReservation() as ports:
        folder = cluster.folder / "alternative"
        folder.mkdir(exist_ok=True)
        address = ReplicaAddress(name="alternative", host=LOOPBACK, api_port=ports.take(), health_port=ports.take())
        endpoint = Endpoint(host=LOOPBACK, port=ports.take())
        settings = HaproxySettings(
            bind=endpoint,
            replicas=(address,),
            stats_socket=str(cluster.folder / "alternative" / "a.sock"),
            state_file=str(folder / "server.state"),
        )
        balancer = HaproxyServer(folder, settings)
        process = _start(cluster, folder, address, variant)
        try:
            await balancer.start()
            async with aiohttp.ClientSession() as session:
                await process.wait_ready(lambda: _serves(session, endpoint), READY_MAX_S)
            servers = {"Postgres": [cluster.postgres.process.pid], "HAProxy": [balancer.process.pid]}
            parts = {"core": [process.pid], "front ends": descendants(process.pid)} | with_descendants(servers)
            yield endpoint, parts
        finally:
            await balancer.stop()
            await process.kill()


def _start(cluster: LocalCluster, folder: Path, address: ReplicaAddress, variant: Variant) -> ManagedProcess:
    config = cluster.config
    api = config.api.model_copy(update={"host": address.host, "port": address.api_port})
    settings: dict[str, Any] = {
        "conninfo": make_conninfo(cluster.conninfo, dbname=DATABASE),
        "connections": variant.connections,
        "batch_max": variant.batch_max,
        "folder": str(folder),
        "health_port": address.health_port,
        "api": api.model_dump(mode="json"),
        "workers": config.api_workers,
    }
    path = folder / "settings.json"
    path.write_text(json.dumps(settings))
    argv = [sys.executable, "-m", "tests.bench.alternative", str(path)]
    process = ManagedProcess(Command(name="alternative", argv=argv, log_path=folder / "alternative.log"))
    process.start()
    return process


async def _serves(session: aiohttp.ClientSession, endpoint: Endpoint) -> bool:
    try:
        async with session.get(f"http://{endpoint.host}:{endpoint.port}/v1/notary") as answer:
            return bool((await answer.json())["active"])
    except (aiohttp.ClientError, OSError):
        return False
