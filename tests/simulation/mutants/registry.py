"""What a mutant is, and the list of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pytest import MonkeyPatch

from tests.simulation.draw import draw
from tests.simulation.plan import Plan


@dataclass(frozen=True, slots=True)
class Mutant:
    """One defect: what is wrong, how it gets into the product's code, and the plans that may show it."""

    name: str
    sentence: str
    apply: Callable[[MonkeyPatch], None]
    plan_of: Callable[[int], Plan]


MUTANTS: list[Mutant] = []


def mutant(
    sentence: str, plan_of: Callable[[int], Plan] = draw
) -> Callable[[Callable[[MonkeyPatch], None]], Callable[[MonkeyPatch], None]]:
    """Adds a function that patches the product to the list; its name is the mutant's."""

    def note(apply: Callable[[MonkeyPatch], None]) -> Callable[[MonkeyPatch], None]:
        MUTANTS.append(Mutant(apply.__name__, sentence, apply, plan_of))
        return apply

    return note
