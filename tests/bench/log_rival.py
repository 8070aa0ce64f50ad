"""PySyncObj with its journal on, three processes on this machine: the library that would replace our log nodes.

Its processes only replicate: nothing is hashed or signed, and its leader makes its own records, without a client.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from asyncio.subprocess import PIPE, Process
from importlib.metadata import version
from pathlib import Path
from typing import Any

from replica.local.ports import PortReservation
from tests.bench.log_nodes import RECORD_BYTES
from tests.bench.report import Report
from tests.bench.sizes import Sizes

_ANSWER_MAX_S = 120.0
DURABILITY = (
    "its journal is a file mapped into memory that it never syncs by itself on appending: "
    "an acknowledged record is in the page caches of two nodes. Ours is synced to the disks of two"
)


async def measure_log_rival(folder: Path, sizes: Sizes, report: Report) -> None:
    """Records committed a second, its durability, and ours over it, whose figure must be in the report."""
    report.section("PySyncObj with its journal on: records committed a second")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with PortReservation() as ports:
        addresses = [f"127.0.0.1:{ports.take()}" for _ in range(3)]
        nodes = [await _start(folder, own, [other for other in addresses if other != own]) for own in addresses]
        try:
            states = await asyncio.gather(*(_answer(node) for node in nodes))
            leader = next(node for node, state in zip(nodes, states, strict=True) if state["leads"])
            found = [await _run(leader, seconds) for seconds in (sizes.run_s / 2, *[sizes.run_s] * sizes.runs)]
        finally:
            for node in nodes:
                node.kill()
                await node.wait()
    report.line("package, records", f"pysyncobj {version('pysyncobj')}, {RECORD_BYTES} bytes, all different")
    runs = [run["committed"] / run["took_s"] for run in found[1:]]
    failed = sum(run["failed"] for run in found)
    report.add(
        "raft_pysyncobj_failed", failed, "refused by it: its queue was full, or its leader changed", f"{failed:,}"
    )
    rate = report.add_runs("raft_pysyncobj_records_s", runs, "committed, three processes", "records/s")
    report.add("raft_pysyncobj_durability", DURABILITY, "its durability", DURABILITY)
    ours = report.figures.get("raft_records_s")
    if isinstance(ours, float):
        report.add("raft_pysyncobj_ratio", round(ours / rate, 2), "our log nodes over it", f"{ours / rate:.2f}")


async def _start(folder: Path, own: str, others: list[str]) -> Process:
    settings = {"own": own, "others": others, "journal": str(folder / f"{own.rpartition(':')[2]}.journal")}
    argv = (sys.executable, "-m", "tests.bench.pysyncobj_node", json.dumps(settings))
    return await asyncio.create_subprocess_exec(*argv, stdin=PIPE, stdout=PIPE)


async def _run(leader: Process, seconds: float) -> dict[str, Any]:
    assert leader.stdin is not None
    leader.stdin.write(f"{seconds}\n".encode())
    return await _answer(leader)


async def _answer(node: Process) -> dict[str, Any]:
    assert node.stdout is not None
    async with asyncio.timeout(_ANSWER_MAX_S):
        return dict(json.loads(await node.stdout.readline()))
