"""A checker that catches nothing is worthless: seeded corruptions of good runs, each of which must be caught."""

from __future__ import annotations

from random import Random

import pytest

from replica.checker.findings import FindingCode
from tests.few import few_quick
from tests.worlds import checker_mutants_log  # noqa: F401 (registers its mutants)
from tests.worlds.checker_mutants import MUTANTS
from tests.worlds.checker_world import good_world

SEEDS = range(16)


@pytest.mark.parametrize("seed", few_quick(range(60), 20))
def test_a_good_run_has_no_finding(seed: int) -> None:
    """Goal: no false alarm. Method: runs with retries, repeated successes, commands that the log
    refuses, lost answers, fail-overs, late records."""
    report = good_world(seed).check()
    assert report.findings == []
    assert report.summary.operations > 0
    assert report.summary.outcomes["DEDUPLICATED"] > 0


def test_there_are_enough_mutants_and_every_finding_has_one() -> None:
    """Goal: no finding is untested. Method: compare the catalogue of findings with what the mutants expect."""
    assert len(MUTANTS) >= 15
    assert {code for _, code in MUTANTS.values()} == set(FindingCode)


@pytest.mark.parametrize("name", MUTANTS)
def test_each_corruption_is_caught(name: str) -> None:
    """Goal: the checker would catch us. Method: corrupt good runs, expect the finding for every one corrupted."""
    corrupt, code = MUTANTS[name]
    corrupted = 0
    for seed in SEEDS:
        world = good_world(seed)
        if corrupt(world, Random(seed)):
            corrupted += 1
            report = world.check()
            assert report.counts.get(code.name, 0) > 0, (seed, report.counts)
    assert corrupted >= 3
