"""Simulates new seeds until a number of operations is reached, a seed fails, or Ctrl-C; continues where it stopped.

`python -m tests.simulation.soak` (`make soak`) runs until 1,000,000 operations of clients were simulated and checked.
A failing seed is shrunk, and plan and story are kept in build/simulation/.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import msgspec

from tests.simulation.draw import Size
from tests.simulation.kinds import FIRST_OF_SOAK, plan_of, play
from tests.simulation.many import Totals, coverage_table, run_in_parallel
from tests.simulation.plan import encode_plan
from tests.simulation.shrink import shrink

FOLDER = Path("build/simulation")
LARGE = Size(clients_max=8, operations_max=30, faults_max=20, duration_s=15.0)


class Progress(msgspec.Struct):
    """What the soak runs of this clone have done so far."""

    next_seed: int = FIRST_OF_SOAK
    totals: Totals = msgspec.field(default_factory=Totals)
    elapsed_s: float = 0.0


def main() -> int:
    """Run; 0 when all was well, 1 when a seed failed."""
    arguments = _arguments()
    state_file = FOLDER / "soak.json"
    FOLDER.mkdir(parents=True, exist_ok=True)
    progress = Progress()
    if state_file.exists() and not arguments.restart:
        progress = msgspec.json.decode(state_file.read_bytes(), type=Progress)
    if arguments.seed is not None:
        progress.next_seed = arguments.seed
    run = Totals()
    try:
        _soak(progress, run, arguments, state_file)
    except KeyboardInterrupt:
        print("stopped")
    print(coverage_table(run))
    print(f"this run: {_summary(run)}\nall runs: {_summary(progress.totals)}, {progress.elapsed_s / 3600:.2f} h")
    for seed, violation in run.failures.items():
        _keep_failure(seed, violation, LARGE if arguments.large else None)
    return 1 if run.failures else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.soak", description=__doc__)
    parser.add_argument("--operations", type=int, default=1_000_000, help="how many to simulate in this run")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, help="begin here, not where the last run stopped")
    parser.add_argument("--large", action="store_true", help="longer runs: more clients, operations and faults in each")
    parser.add_argument("--restart", action="store_true", help="forget what earlier runs did")
    return parser.parse_args()


def _soak(progress: Progress, run: Totals, arguments: argparse.Namespace, state_file: Path) -> None:
    """Run batches of seeds; the state is written after each, so that nothing is lost or done twice."""
    size = LARGE if arguments.large else None
    batch = 400 * arguments.workers // (5 if arguments.large else 1)
    while run.operations < arguments.operations and not run.failures:
        began_s = time.monotonic()
        seeds = range(progress.next_seed, progress.next_seed + batch)
        done = Totals()
        for _, part in run_in_parallel(seeds, size, workers=arguments.workers, chunk=max(1, batch // 40)):
            done.add(part)
        took_s = time.monotonic() - began_s
        run.add(done)
        progress.totals.add(done)
        progress.next_seed = seeds.stop
        progress.elapsed_s += took_s
        state_file.write_bytes(msgspec.json.encode(progress))
        rate = done.operations / took_s
        print(f"to seed {seeds.stop - 1}: {_summary(run)}, {rate:,.0f} operations/s", flush=True)


def _summary(totals: Totals) -> str:
    faults = sum(sum(steps.values()) for steps in totals.strikes.values())
    return (
        f"{totals.seeds:,} seeds, {totals.operations:,} operations, {totals.records:,} records,"
        f" {totals.epochs:,} epochs, {totals.virtual_s / 3600:.1f} virtual h, {faults:,} faults,"
        f" {len(totals.failures)} failures"
    )


def _keep_failure(seed: int, violation: str, size: Size | None) -> None:
    print(f"\nseed {seed} FAILED: {violation}\nshrinking ...", flush=True)
    plan = shrink(plan_of(seed, size), print)
    file = FOLDER / f"seed-{seed}.json"
    file.write_bytes(encode_plan(plan))
    file.with_suffix(".txt").write_text("\n".join(play(plan).story.lines()) + "\n")
    print(f"replay: python -m tests.simulation --plan {file} --story")


if __name__ == "__main__":
    sys.exit(main())
