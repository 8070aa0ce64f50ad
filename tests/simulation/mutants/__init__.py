"""Defects, put into the product's own code while it runs. The simulator must catch each one, or it proves nothing.

A mutant is caught when a run of the mutated code breaks a promise: a finding of the history checker, an invariant of
tests/simulation/verdict.py, no recovery after the faults, or a process that ends by a bug.
"""

from tests.simulation.mutants import (
    activation,
    answers,
    commands,
    following,
    found,
    leadership,
    leases,
    marks,
    operators,
    parties,
    primaries,
    publishing,
    reading,
    rules,
    strangers,
    words,
    workers,
)
from tests.simulation.mutants.registry import MUTANTS, Mutant

__all__ = [
    "MUTANTS",
    "Mutant",
    "activation",
    "answers",
    "commands",
    "following",
    "found",
    "leadership",
    "leases",
    "marks",
    "operators",
    "parties",
    "primaries",
    "publishing",
    "reading",
    "rules",
    "strangers",
    "words",
    "workers",
]
