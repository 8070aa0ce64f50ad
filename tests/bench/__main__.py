"""`python -m tests.bench`: measures the notary on this machine (docs/benchmarks.md describes how)."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from time import monotonic

import structlog
import uvloop

from replica.local.cluster import ClusterSettings, LocalCluster, remove_cluster
from replica.notary.formats import Formats
from tests.bench.conditions import add_conditions, tell_deployment
from tests.bench.load import LoadGenerator
from tests.bench.log_nodes import measure_log_nodes
from tests.bench.machines import Each
from tests.bench.open_loop import draw_curve, measure_curve, measure_half, measure_rival_half
from tests.bench.outages import measure_disconnected, measure_fail_over
from tests.bench.pictures import Curve
from tests.bench.profiles import measure_profiles
from tests.bench.report import Report
from tests.bench.rival import alternative, measure_rival
from tests.bench.scale import measure_scale
from tests.bench.sizes import FULL, QUICK, Sizes
from tests.bench.sizing import measure_sizing
from tests.bench.sizing_page import add_target
from tests.bench.stream import measure_client, measure_stream
from tests.bench.switchovers import measure_switchovers
from tests.bench.throughput import measure_capacity, measure_full_speed, measure_throughput
from tests.bench.workers import measure_workers

FOLDER = Path("build/bench")
JSON = Path("build/bench.json")
PICTURES = Path("build/bench/pictures")  # those of the documentation are in docs/pictures
(
    THROUGHPUT,
    STREAM,
    RIVAL,
    OPEN,
    CURVE,
    FAIL_OVER,
    DISCONNECTED,
    SWITCHOVER,
    SCALE,
    SIZING,
    RAFT,
    PROFILES,
    WORKERS,
) = PARTS = (
    "throughput",
    "stream",
    "rival",
    "open",
    "curve",
    "fail-over",
    "disconnected",
    "switchover",
    "scale",
    "sizing",
    "raft",
    "profiles",
    "workers",
)
SPEED = {THROUGHPUT, STREAM, RIVAL, OPEN, CURVE}


def main() -> int:
    """Measure what is asked for. Exit code 1 when the notary broke a promise on the way."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few minutes: short runs, a small log, few kills")
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts to run, of {', '.join(PARTS)}")
    parser.add_argument("--runs", type=int, help="runs of each load; figures are their medians")
    parser.add_argument("--run-s", type=float, help="how long a run takes")
    parser.add_argument("--records", type=int, help="records in the log before the first kill")
    add_target(parser)
    parser.add_argument("--json", type=Path, default=JSON, help="where the figures go")
    parser.add_argument("--states", type=_millions, help="millions of states to measure at, such as 1,10,100")
    parser.add_argument("--pictures", type=Path, default=PICTURES, help="the folder that pictures are drawn into")
    arguments = parser.parse_args()
    sizes = QUICK if arguments.quick else FULL
    asked = {
        "log_records": arguments.records,
        "runs": arguments.runs,
        "run_s": arguments.run_s,
        "states": arguments.states,
    }
    sizes = replace(sizes, **{name: value for name, value in asked.items() if value is not None})
    parts = set(arguments.only.split(","))
    if not parts <= set(PARTS):
        parser.error(f"there is no part {', '.join(parts - set(PARTS))}")
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    report, began_s = Report(), monotonic()
    try:
        report.add("rules", Formats().rules, "rules of the ledger", str(Formats().rules))
        uvloop.run(run(parts, sizes, Each(*arguments.sizing_target), report, pictures=arguments.pictures))
    finally:  # what was measured before a failure is not lost with it
        report.add("took_s", round(monotonic() - began_s), "all of it took", f"{monotonic() - began_s:,.0f} s")
        report.write(arguments.json)
    return 0


async def run(parts: set[str], sizes: Sizes, target: Each, report: Report, *, pictures: Path) -> None:
    """Run the parts that were asked for, each on a new cluster."""
    if parts & SPEED:
        await measure_speed(parts, sizes, report, pictures)
    if FAIL_OVER in parts:
        await measure_fail_over(FOLDER / FAIL_OVER, sizes, report)
    if DISCONNECTED in parts:
        await measure_disconnected(FOLDER / DISCONNECTED, sizes, report)
    if SWITCHOVER in parts:
        await measure_switchovers(FOLDER / SWITCHOVER, sizes, report)
    if SCALE in parts:
        await measure_scale(FOLDER / SCALE, sizes.states, sizes, report, pictures)
    if SIZING in parts:
        await measure_sizing(FOLDER / SIZING, target, sizes, report)
    if RAFT in parts:
        await measure_log_nodes(FOLDER / RAFT, sizes, report)
    if PROFILES in parts:
        await measure_profiles(FOLDER / PROFILES, sizes, report)
    if WORKERS in parts:
        await measure_workers(FOLDER / WORKERS, sizes, report)


async def measure_speed(parts: set[str], sizes: Sizes, report: Report, pictures: Path) -> None:
    """What goes through one cluster of an active and a passive, and then through its servers without the replicas."""
    folder = FOLDER / "speed"
    await remove_cluster(folder)
    settings = ClusterSettings(folder=folder, replicas=2)
    async with LocalCluster(settings) as cluster:
        await add_conditions(cluster, report)
        tell_deployment(cluster, report)
        load = LoadGenerator(FOLDER / "bodies", cluster.parties)
        curves: dict[str, Curve] = {}
        if parts & {THROUGHPUT, RIVAL, OPEN, CURVE}:
            await measure_capacity(cluster, load, sizes, report)
        if parts & {OPEN, CURVE}:
            await measure_half(cluster, load, sizes, report)
        if CURVE in parts:
            curves["notary"] = await measure_curve(cluster.config.endpoint, load, "notary", sizes, report)
        if parts & {THROUGHPUT, RIVAL}:  # a ratio to the rival's has ours of the same run
            await measure_throughput(cluster, load, sizes, report)
        if parts & {STREAM, RIVAL}:
            await measure_stream(cluster, sizes, report)
        if STREAM in parts:
            await measure_client(cluster, sizes, report)
        if THROUGHPUT in parts:
            await measure_full_speed(cluster, load, sizes, report)
        for replica in cluster.replicas.values():
            await replica.stop()
        if RIVAL in parts:
            await measure_rival(cluster, load, sizes, report)
        if parts & {OPEN, CURVE}:
            best = await measure_rival_half(cluster, load, sizes, report)
            if CURVE in parts:
                async with alternative(cluster, best) as (endpoint, _):
                    curves["alternative"] = await measure_curve(endpoint, load, "alternative", sizes, report)
                draw_curve(curves, pictures, report)


def _millions(text: str) -> tuple[int, ...]:
    """Numbers of states, ascending. Raises ValueError."""
    return tuple(sorted(round(float(part) * 1_000_000) for part in text.split(",")))


if __name__ == "__main__":
    sys.exit(main())
