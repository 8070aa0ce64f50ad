"""The same workload on the obvious alternative (alternative.py), behind the same front ends and HAProxy."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
from psycopg.conninfo import make_conninfo

from haproxy.render import Endpoint, HaproxySettings, ReplicaAddress
from replica.local.cluster import ROLE, LocalCluster
from replica.local.haproxy import HaproxyServer
from replica.local.ports import LOOPBACK, PortReservation
from replica.local.process import Command, ManagedProcess
from tests.bench.load import BATCH, SINGLE, LoadGenerator, Shape
from tests.bench.report import Report
from tests.bench.sizes import Sizes

DATABASE = "alternative"
READY_MAX_S = 30.0
BATCH_MAX = 1_000
BATCH_POOLS = (1, 2, 4)


async def measure_rival(cluster: LocalCluster, load: LoadGenerator, sizes: Sizes, report: Report) -> None:
    """Single requests and batches, each with the pool that does best; ratios to ours if they were measured.

    Postgres is the cluster's own server; the replicas must have been stopped.
    """
    report.section("The alternative: a Postgres table with a unique key, behind the same front ends and HAProxy")
    await cluster.postgres.ensure_database(DATABASE, ROLE)
    await _measure(cluster, load, SINGLE, "single", 1, sizes.rival_pools, sizes, report)
    pools = BATCH_POOLS if len(sizes.rival_pools) > 1 else BATCH_POOLS[1:2]
    await _measure(cluster, load, BATCH, "batch", BATCH_MAX, pools, sizes, report)


async def _measure(
    cluster: LocalCluster,
    load: LoadGenerator,
    shape: Shape,
    name: str,
    batch_max: int,
    pools: tuple[int, ...],
    sizes: Sizes,
    report: Report,
) -> None:
    tried: dict[int, float] = {}
    for pool in pools:
        async with _alternative(cluster, pool, batch_max) as endpoint:
            await load.warm_up(endpoint, shape)
            tried[pool] = await load.warm_up(endpoint, shape)
    best = max(tried, key=lambda pool: tried[pool])
    async with _alternative(cluster, best, batch_max) as endpoint:
        warm = await load.warm_up(endpoint, shape)
        results = await load.measure(endpoint, shape, sizes.runs, sizes.run_s, warm)
    rates = [result.per_second * shape.per_body for result in results]
    shown = ", ".join(f"{pool}: {rate * shape.per_body:,.0f}" for pool, rate in tried.items())
    report.line(f"{name}, pools tried", shown)
    report.figures[f"postgres_{name}_connections"] = best
    report.add_runs(f"postgres_{name}_tps_4_inputs", rates, f"{name}, pool of {best}", "submissions/s")
    ours = report.figures.get(f"{name}_tps_4_inputs")
    if isinstance(ours, float):
        ratio = round(ours / median(rates), 2)
        report.add(f"postgres_{name}_ratio", ratio, f"{name}, ours over the alternative", f"{ratio:.2f}")


@asynccontextmanager
async def _alternative(cluster: LocalCluster, connections: int, batch_max: int) -> AsyncIterator[Endpoint]:
    """The alternative behind an HAProxy of its own, on the tables that it left the last time."""
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
        process = _start(cluster, folder, address, connections, batch_max)
        try:
            await balancer.start()
            async with aiohttp.ClientSession() as session:
                await process.wait_ready(lambda: _serves(session, endpoint), READY_MAX_S)
            yield endpoint
        finally:
            await balancer.stop()
            await process.kill()


def _start(
    cluster: LocalCluster, folder: Path, address: ReplicaAddress, connections: int, batch_max: int
) -> ManagedProcess:
    config = cluster.config
    api = config.api.model_copy(update={"host": address.host, "port": address.api_port})
    settings: dict[str, Any] = {
        "conninfo": make_conninfo(cluster.conninfo, dbname=DATABASE),
        "connections": connections,
        "batch_max": batch_max,
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
