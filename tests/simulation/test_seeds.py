"""The simulator's seeds of every check: nothing is broken, every misfortune fired, and each run can be repeated."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
import pytest

from tests.few import few_quick
from tests.simulation.chosen import SEEDS, chosen_seeds
from tests.simulation.draw import draw_profile
from tests.simulation.many import Totals, coverage_table, never_fired, run_in_parallel, run_seed, run_seeds
from tests.simulation.world import simulate

COVERAGE_FILE = Path("build/simulation-coverage.json")


REPLAY = "replay with: python -m tests.simulation --seed SEED --story"


def test_the_chosen_seeds_break_no_promise_and_every_fault_fires() -> None:
    """Goal: no promise is broken at any step at which a fault can strike. Method: few seeds, which reach
    what all do."""
    totals = run_seeds(chosen_seeds())
    for seed in SEEDS:  # a change of the product shifts runs, until they are chosen again
        if not never_fired(totals):
            break
        totals.add(run_seed(seed))
    assert not totals.failures, f"{len(totals.failures)} seeds failed, {REPLAY}: {totals.failures}"
    assert not never_fired(totals)
    if totals.seeds > len(chosen_seeds()):
        print("choose again: python -m tests.simulation.chosen")


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_the_other_seeds_break_no_promise() -> None:
    """Goal: no seed breaks a promise. Method: run those that are not chosen on every processor, add up."""
    others = sorted(set(SEEDS) - set(chosen_seeds()))
    began_s, totals = time.monotonic(), Totals()
    for _, part in run_in_parallel(others, workers=os.cpu_count() or 1):
        totals.add(part)
    took_s = time.monotonic() - began_s
    COVERAGE_FILE.parent.mkdir(exist_ok=True)
    COVERAGE_FILE.write_bytes(msgspec.json.format(msgspec.json.encode(totals), indent=1))
    print(f"{coverage_table(totals)}\n{totals.seeds} seeds, {totals.operations} operations in {took_s:.0f} s")
    assert not totals.failures, f"{len(totals.failures)} seeds failed, {REPLAY}: {totals.failures}"
    assert totals.seeds == len(others)


@pytest.mark.parametrize("seed", few_quick(range(1, 41), 8))
def test_a_seed_goes_the_same_way_twice(seed: int) -> None:
    """Goal: a failing seed can be replayed. Method: run a seed twice, compare every event."""
    first, second = simulate(draw_profile(seed)), simulate(draw_profile(seed))
    assert first.story.digest() == second.story.digest()
    assert first.strikes == second.strikes
