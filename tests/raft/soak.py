"""Simulates new seeds of the consensus core until a number of them were played or one fails; goes on where it stopped.

`python -m tests.raft.soak` plays 10,000 seeds. A failing seed is shrunk, and kept in build/raft/ as a scenario.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.raft.scenarios import commands
from tests.raft.shrink import shrink
from tests.raft.simulator import Run, simulate

FIRST_SEED = 1_000_000  # the tests have the seeds below
FOLDER = Path("build/raft")
CHUNK = 50


def play(first: int) -> tuple[Counter[str], list[Run]]:
    """Play one chunk of seeds: what happened, and the runs that failed."""
    counts: Counter[str] = Counter()
    failed: list[Run] = []
    for seed in range(first, first + CHUNK):
        run = simulate(seed)
        counts += run.counts
        if run.problem is not None:
            failed.append(run)
    return counts, failed


def main() -> int:
    """Run; 0 when all was well, 1 when a seed failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.raft.soak", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10_000, help="how many to play in this run")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--first", type=int, help="begin here, not where the last run stopped")
    arguments = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    state_file = FOLDER / "next-seed"
    known = int(state_file.read_text()) if state_file.exists() else FIRST_SEED
    first = known if arguments.first is None else arguments.first
    counts: Counter[str] = Counter()
    began_s = time.monotonic()
    with ProcessPoolExecutor(arguments.workers) as pool:
        chunks = range(first, first + arguments.seeds, CHUNK)
        for begin, (happened, failed) in zip(chunks, pool.map(play, chunks), strict=True):
            counts += happened
            if failed:
                pool.shutdown(wait=False, cancel_futures=True)
                return _keep(failed[0])
            if arguments.first is None:
                state_file.write_text(str(begin + CHUNK))
            if (begin - first) // CHUNK % 20 == 19:
                print(f"consensus: to seed {begin + CHUNK - 1}, {time.monotonic() - began_s:.0f} s", flush=True)
    print(f"consensus: {arguments.seeds:,} seeds, {counts['committed']:,} entries committed, none failed")
    print(", ".join(f"{name} {count:,}" for name, count in counts.most_common()))
    return 0


def _keep(run: Run) -> int:
    print(f"seed {run.seed} FAILED: {run.problem}\nshrinking ...", flush=True)
    file = FOLDER / f"seed-{run.seed}"
    file.write_text(run.scenario())
    if "no recovery" not in str(run.problem):  # a shorter run recovers less: shrunk, it would show nothing
        file.write_text("\n".join((f"# seed {run.seed}: {run.problem}", *shrink(commands(run.scenario())), "")))
    print(f"replay: python -m tests.raft.scenarios {file}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
