"""Runs seeds on mutated code until one catches the mutant."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec
from pytest import MonkeyPatch

from tests.simulation.mutants.registry import MUTANTS
from tests.simulation.shrink import kind_of
from tests.simulation.world import simulate

PINS_FILE = Path(__file__).with_name("pins.json")
"""A seed that catches each mutant: the lowest one when it was searched for. Later changes may make a lower one do."""


class Catch(msgspec.Struct):
    """How a mutant was noticed; `seed` 0: it was not."""

    name: str
    seed: int
    tried: int
    violation: str


def catch(name: str, seeds: Iterable[int]) -> Catch:
    """Run a mutant on seeds, one after the other, until a run breaks a promise."""
    (mutant,) = [mutant for mutant in MUTANTS if mutant.name == name]
    tried = 0
    with MonkeyPatch.context() as patch:
        mutant.apply(patch)
        for seed in seeds:
            tried += 1
            violations = simulate(mutant.plan_of(seed)).violations
            if violations:
                return Catch(name, seed, tried, kind_of(violations[0]))
    return Catch(name, 0, tried, "")


def table(catches: list[Catch]) -> str:
    """One line for each mutant: name, the first seed that notices, and what was noticed."""
    lines = [f"{'mutant':<44} {'seeds':>5}  noticed as"]
    for found in sorted(catches, key=lambda found: found.seed):
        lines.append(f"{found.name:<44} {found.seed or 'none':>5}  {found.violation}")
    return "\n".join(lines)
