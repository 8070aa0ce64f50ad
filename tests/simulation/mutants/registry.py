"""What a mutant is, and the list of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pytest import MonkeyPatch


@dataclass(frozen=True, slots=True)
class Mutant:
    """One defect: what is wrong, and how it gets into the product's code."""

    name: str
    sentence: str
    apply: Callable[[MonkeyPatch], None]


MUTANTS: list[Mutant] = []


def mutant(sentence: str) -> Callable[[Callable[[MonkeyPatch], None]], Callable[[MonkeyPatch], None]]:
    """Adds a function that patches the product to the list; its name is the mutant's."""

    def note(apply: Callable[[MonkeyPatch], None]) -> Callable[[MonkeyPatch], None]:
        MUTANTS.append(Mutant(apply.__name__, sentence, apply))
        return apply

    return note
