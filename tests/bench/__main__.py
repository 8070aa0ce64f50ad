"""`python -m tests.bench`: measures the notary on this machine (docs/benchmarks.md says how, and how to read it)."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
from pathlib import Path

import uvloop

from replica.local.cluster import ClusterSettings, LocalCluster
from tests.bench.conditions import add_conditions
from tests.bench.load import LoadGenerator
from tests.bench.report import Report
from tests.bench.sizes import FULL, QUICK, Sizes
from tests.bench.throughput import measure_throughput

FOLDER = Path("build/bench")
JSON = Path("build/bench.json")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few minutes: short runs, a small log, few kills")
    parser.add_argument("--json", type=Path, default=JSON, help="where the figures go")
    arguments = parser.parse_args()
    report = Report()
    uvloop.run(run(QUICK if arguments.quick else FULL, report))
    report.write(arguments.json)
    return 0


async def run(sizes: Sizes, report: Report) -> None:
    shutil.rmtree(FOLDER, ignore_errors=True)
    async with LocalCluster(ClusterSettings(folder=FOLDER / "cluster", replicas=2)) as cluster:
        await add_conditions(cluster, report)
        load = LoadGenerator(FOLDER / "bodies", cluster.parties)
        await measure_throughput(cluster, load, sizes, report)


if __name__ == "__main__":
    sys.exit(main())
