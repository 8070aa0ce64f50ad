"""What the processes of a cluster use: processor time and memory, by part."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from replica.local.cluster import LocalCluster
from replica.local.process import descendants
from tests.bench.report import Report

SAMPLE_S = 1.0  # a sample walks through page tables, and holds up the processes meanwhile
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
Parts = Mapping[str, list[int]]  # process ids by the name of the part


async def parts_of(cluster: LocalCluster) -> dict[str, list[int]]:
    """Every process of a running cluster, front ends apart from their core."""
    active = await cluster.active()
    parts: dict[str, list[int]] = {}
    for replica in cluster.replicas.values():
        if replica.running:
            role = "active" if replica is active else "passive"
            parts.setdefault(f"{role} core", []).append(replica.pid)
            parts.setdefault(f"{role} front ends", []).extend(descendants(replica.pid))
    brokers = cluster.kafka.brokers if cluster.log_kind == "kafka" else []
    servers = {"Kafka": [broker.process.pid for broker in brokers]}
    if cluster.log_nodes:
        servers["log nodes"] = [node.pid for node in cluster.log_nodes.values()]
    if not cluster.embedded:
        servers |= {"Postgres": [cluster.postgres.process.pid], "HAProxy": [cluster.haproxy.process.pid]}
        if cluster.postgres_standby is not None:
            servers["Postgres standby"] = [cluster.postgres_standby.process.pid]
    return parts | with_descendants(servers)


def with_descendants(parts: Parts) -> dict[str, list[int]]:
    """The processes, and theirs that are there at this moment."""
    return {name: [child for pid in pids for child in (pid, *descendants(pid))] for name, pids in parts.items()}


def cpu_s(parts: Parts) -> dict[str, float]:
    """Processor seconds used so far, by part, with those of children that have ended."""
    return {name: sum(_cpu_s(Path(f"/proc/{pid}/stat"), 4) for pid in pids) for name, pids in parts.items()}


def add_cpu(name: str, each_s: Mapping[str, float], label: str, report: Report) -> dict[str, float]:
    """Report the processor time of each part for one submission; returns it in microseconds."""
    each_us = {part: round(1e6 * part_s, 1) for part, part_s in each_s.items()}
    shown = ", ".join(f"{part} {each:.0f}" for part, each in sorted(each_us.items(), key=lambda item: -item[1]))
    report.add(name, each_us, label, f"{shown} µs")
    return each_us


def thread_cpu_s(pid: int) -> dict[int, float]:
    """Processor seconds that each thread of a process has used so far, by its id."""
    return {int(task.name): _cpu_s(task / "stat", 2) for task in Path(f"/proc/{pid}/task").iterdir()}


def compaction_cpu_s(pids: Sequence[int]) -> float:
    """Processor seconds that RocksDB's threads for compaction have used so far in these processes."""
    tasks = (task for pid in pids for task in Path(f"/proc/{pid}/task").iterdir())
    return sum(_cpu_s(task / "stat", 2) for task in tasks if (task / "comm").read_text().startswith("rocksdb:low"))


def memory_mib(parts: Parts) -> dict[str, float]:
    """Resident memory by part; what processes share is split between them (proportional set size)."""
    return {name: round(sum(map(_memory_kib, pids)) / 1_024, 1) for name, pids in parts.items()}


@asynccontextmanager
async def peak_memory_mib(parts: Parts) -> AsyncIterator[dict[str, float]]:
    """The most resident memory of each part while the context lasts, as far as a look every SAMPLE_S sees it."""
    peak = memory_mib(parts)

    async def watch() -> None:
        while True:
            await asyncio.sleep(SAMPLE_S)
            for name, now_mib in (await asyncio.to_thread(memory_mib, parts)).items():
                peak[name] = max(peak[name], now_mib)

    watching = asyncio.create_task(watch())
    try:
        yield peak
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching


def folder_bytes(folder: Path) -> int:
    """Bytes that a folder's files take on disk; one that is deleted meanwhile does not count."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            total += path.stat().st_blocks * 512 if path.is_file() else 0
    return total


def _cpu_s(stat: Path, fields: int) -> float:
    """The first so many of: user, system, and both of the children that were waited for (`man 5 proc`)."""
    with suppress(FileNotFoundError, ProcessLookupError):
        found = stat.read_text().rpartition(")")[2].split()[11:]
        return sum(map(int, found[:fields])) / _TICKS_PER_S
    return 0.0


def _memory_kib(pid: int) -> int:
    with suppress(FileNotFoundError, ProcessLookupError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    return 0
