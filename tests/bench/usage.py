"""What the processes of a cluster use: processor time and memory, by part."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from replica.local.cluster import LocalCluster
from replica.local.process import descendants

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
    servers = {
        "Kafka": [broker.process.pid for broker in cluster.kafka.brokers],
        "Postgres": [cluster.postgres.process.pid],
        "HAProxy": [cluster.haproxy.process.pid],
    }
    return parts | {
        name: [child for pid in pids for child in (pid, *descendants(pid))] for name, pids in servers.items()
    }


def cpu_s(parts: Parts) -> dict[str, float]:
    """Processor seconds used so far, by part; those of children that have ended are not in it."""
    return {name: sum(map(_cpu_s, pids)) for name, pids in parts.items()}


def memory_mib(parts: Parts) -> dict[str, float]:
    """Resident memory by part; what processes share is split between them (proportional set size)."""
    return {name: round(sum(map(_memory_kib, pids)) / 1_024, 1) for name, pids in parts.items()}


def folder_bytes(folder: Path) -> int:
    """Bytes that a folder's files take on disk; one that is deleted meanwhile does not count."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            total += path.stat().st_blocks * 512 if path.is_file() else 0
    return total


def _cpu_s(pid: int) -> float:
    with suppress(FileNotFoundError, ProcessLookupError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
    return 0.0


def _memory_kib(pid: int) -> int:
    with suppress(FileNotFoundError, ProcessLookupError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    return 0
