"""Which plan a seed stands for, and which world a plan is played in."""

from __future__ import annotations

from msgspec.structs import replace

from tests.simulation.draw import Size, draw, draw_profile
from tests.simulation.plan import Plan
from tests.simulation.postgres_log import PostgresWorld
from tests.simulation.workers import all_serving
from tests.simulation.world import Outcome, World, simulate

FIRST_OF_SOAK = 1_000_000  # CI has the seeds below: each kind of world has suites and seeds of its own there


def plan_of(seed: int, size: Size | None = None) -> Plan:
    """The plan of a seed. Of those that `make soak` plays, some serve with all replicas, some have their log on
    Postgres, and some both."""
    kind = seed % 8 if seed >= FIRST_OF_SOAK else 0
    if kind == 1:
        return all_serving(draw(seed, size))
    if kind == 2:
        return replace(draw(seed, size), on_postgres=True)
    if kind == 3:
        return replace(all_serving(draw(seed, size)), on_postgres=True)
    return draw_profile(seed, size)


def play(plan: Plan) -> Outcome:
    """Run a plan in its world."""
    return simulate(plan, PostgresWorld if plan.on_postgres else World)
