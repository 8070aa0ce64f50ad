"""Wrong variants of the core. Each must fail the scenario that names it, and be noticed by the simulator."""

from tests.raft.mutants import durability, electing, following, leading, membership, reading, telling
from tests.raft.mutants.registry import MUTANTS, Mutant

__all__ = ["MUTANTS", "Mutant", "durability", "electing", "following", "leading", "membership", "reading", "telling"]
