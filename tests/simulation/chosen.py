"""The few seeds of `make test`, which reach what all of CI's do. `python -m tests.simulation.chosen` chooses them anew.

What a run reaches: a misfortune at a step of a replica, each misfortune anywhere, and answers to clients. The next seed
is the one that adds most. A misfortune is wanted in ANYWHERE_MIN seeds, so that a change of the product which shifts
some runs does not lose it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import msgspec

from tests.simulation.many import Totals, run_in_parallel

SEEDS = range(1, 2_001)
CHOSEN_FILE = Path(__file__).with_name("chosen.json")
ANYWHERE_MIN = 3


def chosen_seeds() -> list[int]:
    """The seeds that are pinned."""
    return msgspec.json.decode(CHOSEN_FILE.read_bytes(), type=list[int])


def reached(run: Totals) -> set[tuple[str, str]]:
    """What a run reached: misfortune and step, misfortune and "", or an answer and ""."""
    at_steps = {(what, step) for what, steps in run.strikes.items() for step in steps}
    return at_steps | {(what, "") for what in (*run.strikes, *run.answers)}


def choose(reached_by: Mapping[int, set[tuple[str, str]]]) -> list[int]:
    """Seeds that reach all that any does, by greedy cover; the lowest of equals."""
    by_how_many = Counter(thing for things in reached_by.values() for thing in things)
    wanted = Counter({thing: min(count, 1 if thing[1] else ANYWHERE_MIN) for thing, count in by_how_many.items()})
    chosen: list[int] = []
    left = dict(sorted(reached_by.items()))
    while wanted:
        best = max(left, key=lambda seed: len(left[seed] & wanted.keys()))
        wanted -= Counter(left.pop(best))
        chosen.append(best)
    return sorted(chosen)


def main() -> None:
    """Run all seeds, choose, write the file."""
    reached_by = {}
    for seeds, run in run_in_parallel(SEEDS, workers=os.cpu_count() or 1, chunk=1):
        reached_by[seeds[0]] = reached(run)
    chosen = choose(reached_by)
    CHOSEN_FILE.write_bytes(msgspec.json.encode(chosen) + b"\n")
    print(f"{len(chosen)} of {len(SEEDS)} seeds reach all {len(set().union(*reached_by.values()))}")


if __name__ == "__main__":
    main()
