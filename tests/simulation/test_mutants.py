"""Defects put into the product's code: the simulator notices each of them."""

from __future__ import annotations

import msgspec
import pytest

from tests.simulation.chosen import chosen_seeds
from tests.simulation.mutants import MUTANTS, Mutant
from tests.simulation.mutants.catching import PINS_FILE, Catch, catch, table

SEEDS_MAX = 2_000  # as many as CI simulates; a mutant that needs more is not caught there
PINS = msgspec.json.decode(PINS_FILE.read_bytes(), type=dict[str, int])


def test_there_are_many_mutants_and_each_has_its_seed() -> None:
    """Goal: the suite does not shrink by accident. Method: count, and compare with the seeds that are kept."""
    assert len(MUTANTS) >= 90
    assert sorted(PINS) == sorted(mutant.name for mutant in MUTANTS)
    print(table([Catch(name, seed, seed, "") for name, seed in PINS.items()]))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_caught(mutant: Mutant) -> None:
    """Goal: each defect is noticed within a bounded number of seeds. Method: the seed that is known to, else search,
    first where most is reached."""
    found = catch(mutant.name, [PINS[mutant.name]])
    if not found.seed:
        found = catch(mutant.name, [*chosen_seeds(), *range(1, SEEDS_MAX + 1)])
        assert found.seed, f"{mutant.name} is not noticed within {SEEDS_MAX} seeds: {mutant.sentence}"
        print("pin it again: python -m tests.simulation.mutants --pin", mutant.name)
    print(f"{mutant.name}: caught by seed {found.seed} as {found.violation}")
