"""Named defects, each the opposite of one rule, put into the core while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

Make = Callable[[Any], Any]


@dataclass(slots=True)
class Mutant:
    """A rule, and the replacements that leave it out."""

    name: str
    rule: str
    patches: list[tuple[Any, str, Make]] = field(default_factory=list)

    @contextmanager
    def applied(self) -> Iterator[None]:
        with ExitStack() as stack:
            for target, attribute, make in self.patches:
                original = vars(target)[attribute]
                stack.enter_context(patch.object(target, attribute, make(original)))
            yield


MUTANTS: dict[str, Mutant] = {}


def mutant(name: str, rule: str, target: Any, attribute: str) -> Callable[[Make], Make]:
    """Register what `make(original)` gives as a replacement; a name that is used again gets several."""

    def register(make: Make) -> Make:
        MUTANTS.setdefault(name, Mutant(name, rule)).patches.append((target, attribute, make))
        return make

    return register
