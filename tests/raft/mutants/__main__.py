"""How many seeds each mutant takes: `python -m tests.raft.mutants [--seeds 2000] [--write] [NAME...]`.

`--write` keeps the first seed that notices each in pins.json, which the tests play; without names, all mutants.
"""

from __future__ import annotations

import argparse
import os
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed

import msgspec

from tests.raft.mutants import MUTANTS
from tests.raft.mutants.pins import PINS_FILE, pins
from tests.raft.simulator import simulate


def first_seed(name: str, seeds: int) -> tuple[str, int | None, str | None]:
    """The first seed that notices the mutant, and what it noticed. Raises AssertionError if it fails without it too."""
    for seed in range(seeds):
        with MUTANTS[name].applied():
            problem = simulate(seed).problem
        if problem is not None:
            assert (plain := simulate(seed).problem) is None, f"seed {seed} fails without a mutant: {plain}"
            return name, seed, problem
    return name, None, None


def main() -> int:
    """Print a line for each; 1 if any was not noticed."""
    parser = argparse.ArgumentParser(prog="python -m tests.raft.mutants", description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seeds", type=int, default=2_000)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    found, missed = pins(), False
    with ProcessPoolExecutor(arguments.workers) as pool:
        playing = [pool.submit(first_seed, name, arguments.seeds) for name in arguments.names or MUTANTS]
        for done in as_completed(playing):
            name, seed, problem = done.result()
            print(f"{name}: {'NOT NOTICED' if seed is None else f'seed {seed}: {str(problem)[:150]}'}", flush=True)
            missed |= seed is None
            if seed is not None:
                found[name] = seed
            if arguments.write:
                PINS_FILE.write_bytes(msgspec.json.format(msgspec.json.encode(dict(sorted(found.items())))) + b"\n")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
