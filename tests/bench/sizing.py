"""What each part of the reference deployment costs, on a cluster made like it, but for the machines.

Three replicas, three brokers, a primary and its synchronous standby, and the HAProxy node that has the address (the
other one idles). The load is that of the throughput: single requests, and batches. What a target needs follows from
the figures: machines.py.
"""

from __future__ import annotations

import asyncio
import csv
import os
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import LiteralString

import msgspec
import psycopg

from haproxy.nodes import BACKEND
from replica.local.cluster import ClusterSettings, LocalCluster, remove_cluster
from replica.local.participant import DATABASE
from replica.local.process import until
from tests.bench import machines
from tests.bench.conditions import add_conditions, tell_deployment
from tests.bench.load import BATCH, INPUTS, SINGLE, LoadGenerator, Shape
from tests.bench.machines import CLIENTS_IN, CLIENTS_OUT, WAL, WAYS, Each, Measured, Part, SizingError, deployment_for
from tests.bench.report import Report, out
from tests.bench.sizes import Sizes
from tests.bench.sizing_page import render
from tests.bench.throughput import SUBMISSIONS_UNIT
from tests.bench.usage import Parts, cpu_s, parts_of, peak_memory_mib, thread_cpu_s
from tests.faults.audit import wait_until_published

BROKERS = REPLICAS = 3
METADATA_MAX_S = CONNECTIONS_END_MAX_S = 10.0
ON_MACHINES = {part: role.machines for role in machines.ROLES for part in role.parts}
ON_ONE_MACHINE = (machines.ACTIVE_CORE, machines.ACTIVE_FRONT_ENDS, machines.LEADING_BROKER)
TABLES = {machines.COMPLETIONS: "completion"}
THREAD = "thread "


async def measure_sizing(folder: Path, target: Each, sizes: Sizes, report: Report) -> None:
    """Measure, then derive the machines for a target; one that is beyond reach is reported. Raises LoadFailed."""
    report.section(f"Sizing: {REPLICAS} replicas, {BROKERS} brokers, primary and synchronous standby, {INPUTS} inputs")
    await remove_cluster(folder)
    settings = ClusterSettings(folder=folder, replicas=REPLICAS, brokers=BROKERS, database_standby=True)
    async with LocalCluster(settings) as cluster:
        if "versions" not in report.figures:
            await add_conditions(cluster, report)
        tell_deployment(cluster, report)
        measured = await _measure(cluster, LoadGenerator(folder / "bodies", cluster.parties), sizes, report)
    report.line("load average at the end", " ".join(f"{load:.2f}" for load in os.getloadavg()))
    report.figures["sizing"] = msgspec.to_builtins(measured)
    try:
        report.figures["sizing_machines"] = msgspec.to_builtins(deployment_for(measured, target))
        out.print(f"\n{render(measured, target)}")
    except SizingError as error:
        report.line("no machines for this target", str(error))


async def _measure(cluster: LocalCluster, load: LoadGenerator, sizes: Sizes, report: Report) -> Measured:
    processes = await _processes(cluster)
    async with peak_memory_mib(processes) as peak_mib:
        single_tps, single = await _under_load(cluster, load, SINGLE, "single", processes, sizes, report)
        batch_tps, batch = await _under_load(cluster, load, BATCH, "batch", processes, sizes, report)
    afterwards = await _processes(cluster)
    if any(afterwards[part] != processes[part] for part in ON_ONE_MACHINE):
        raise RuntimeError("roles changed meanwhile: the figures belong to nobody")

    def part(name: str) -> Part:
        alike = ON_MACHINES[name]
        cpu_us = Each(*(round(1e6 * each[name] / alike, 1) for each in (single, batch)))
        return Part(len(processes[name]) // alike, cpu_us, round(peak_mib[name] / alike))

    return Measured(
        tps=Each(single_tps, batch_tps),
        parts={name: part(name) for name in ON_MACHINES},
        core_thread_us=Each(*(_busiest_thread_us(each) for each in (single, batch))),
        disk_bytes=await _disk_bytes(cluster),
        network_bytes={way: Each(round(single[way]), round(batch[way])) for way in WAYS},
    )


async def _under_load(
    cluster: LocalCluster, load: LoadGenerator, shape: Shape, name: str, parts: Parts, sizes: Sizes, report: Report
) -> tuple[float, dict[str, float]]:
    """Submissions a second, and what each of them used: processor seconds of parts and threads, bytes on the ways."""
    (core,) = parts[machines.ACTIVE_CORE]

    async def counters() -> dict[str, float]:
        threads = {f"{THREAD}{number}": used_s for number, used_s in thread_cpu_s(core).items()}
        return cpu_s(parts) | threads | await _network_bytes(cluster)

    results, each = await load.measure_warm(cluster.config.endpoint, shape, sizes.runs, sizes.run_s, counters)
    rates = [result.per_second * shape.per_body for result in results]
    report.add_runs(f"sizing_{name}_tps", rates, name, SUBMISSIONS_UNIT)
    return round(median(rates)), each


def _busiest_thread_us(each: Mapping[str, float]) -> float:
    return round(1e6 * max(used_s for name, used_s in each.items() if name.startswith(THREAD)), 1)


async def _processes(cluster: LocalCluster) -> dict[str, list[int]]:
    """The processes of each part, brokers by whether they lead the request log's partition."""
    parts = await parts_of(cluster)
    del parts["Kafka"]
    metadata = await asyncio.to_thread(cluster.kafka.admin().list_topics, cluster.topic, timeout=METADATA_MAX_S)
    leader = metadata.topics[cluster.topic].partitions[0].leader
    for broker in cluster.kafka.brokers:
        name = machines.LEADING_BROKER if broker.node_id == leader else machines.FOLLOWING_BROKER
        parts.setdefault(name, []).append(broker.process.pid)
    return parts


async def _network_bytes(cluster: LocalCluster) -> dict[str, float]:
    """What has gone each way so far. HAProxy counts a connection's bytes when it ends: wait for the last of a run's."""
    total: dict[str, str] = {}

    async def all_ended() -> bool:
        rows = csv.DictReader((await cluster.haproxy.runtime.ask("show stat")).removeprefix("# ").splitlines())
        (found,) = (row for row in rows if (row["pxname"], row["svname"]) == (BACKEND, "BACKEND"))
        total.update(found)
        return found["scur"] == "0"

    async with asyncio.timeout(CONNECTIONS_END_MAX_S):
        await until(all_ended)
    (written,) = await _from_database(cluster, "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')")
    return {CLIENTS_IN: float(total["bin"]), CLIENTS_OUT: float(total["bout"]), WAL: written}


async def _disk_bytes(cluster: LocalCluster) -> dict[str, float]:
    """Bytes a transaction in each place, over all that was sent; each request of the load is one record."""
    await wait_until_published(cluster)
    active = await cluster.wait_for_active()
    health = (await cluster.healths())[active.name]
    if health is None:
        raise RuntimeError("the active does not answer")
    records = health.applied_offset + 1
    log = _bytes_in(cluster.kafka.brokers[0].folder / "data" / f"{cluster.topic}-0", "*.log")
    passive = (await cluster.passives())[0]
    await passive.stop()  # closes the index: what was in memory is in its files
    index = _bytes_in(cluster.config.replica_dir(passive.name) / "index", "*.sst")
    tables = await _from_database(
        cluster, "SELECT pg_total_relation_size(name::regclass) FROM unnest(%s::text[]) AS name", list(TABLES.values())
    )
    sizes = {machines.REQUEST_LOG: log, machines.INDEX: index, **dict(zip(TABLES, tables, strict=True))}
    return {place: round(size / records) for place, size in sizes.items()}


async def _from_database(cluster: LocalCluster, query: LiteralString, *values: object) -> list[float]:
    """The first column of what a query finds."""
    async with await psycopg.AsyncConnection.connect(cluster.postgres.dsn(DATABASE), autocommit=True) as connection:
        cursor = await connection.execute(query, values)
        return [float(row[0]) for row in await cursor.fetchall()]


def _bytes_in(folder: Path, pattern: str) -> int:
    return sum(path.stat().st_size for path in folder.glob(pattern))
