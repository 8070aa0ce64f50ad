"""Whole replicas that all serve (`serving = "all"`): no seed breaks a promise, and what they are there for happens."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from msgspec.structs import replace

from tests.few import few_and_others, few_quick
from tests.simulation.draw import draw, leased, worded
from tests.simulation.kinds import play
from tests.simulation.plan import FaultKind, Plan
from tests.simulation.workers import all_serving
from tests.simulation.world import Outcome, simulate

SEEDS = range(1, 51)
FEW = SEEDS[35:]  # in which each mishap strikes
MISHAPS = (
    *[FaultKind.CRASH, FaultKind.CRASH_HOST, FaultKind.STALL, FaultKind.ISLAND, FaultKind.SESSION_KILLED],
    *[FaultKind.LOG_CUT, FaultKind.LOG_CLOGGED, FaultKind.CLOCK_JUMP],
    *["desk_unreachable", "desk_late", "desk_lost"],
)
HEARD = re.compile(r"\[\w+\] (logged_anew|worker_serves|worker_stops_serving|desk_unreachable|worker_has_a_new_writer)")


@pytest.mark.parametrize("seeds", few_and_others(FEW, SEEDS))
def test_no_seed_breaks_a_promise_and_every_mishap_happens(seeds: list[int]) -> None:
    """Goal: the notary keeps its promises when every replica serves. Method: many seeds; each mishap strikes in some,
    clients of most seeds are answered by several replicas, and records are logged anew."""
    strikes: Counter[str] = Counter()
    heard: Counter[str] = Counter()
    doors: Counter[int] = Counter()
    for seed in seeds:
        outcome = simulate(all_serving(draw(seed)))
        assert outcome.violations == [], f"seed {seed}"
        strikes.update(what for what, _ in outcome.strikes)
        heard.update(found[1] for line in outcome.story.lines() if (found := HEARD.search(line)))
        doors[_doors(outcome)] += 1
    print(f"{dict(heard)}, replicas that answered: {dict(sorted(doors.items()))}, {dict(strikes)}")
    assert [mishap for mishap in MISHAPS if not strikes[mishap]] == []
    assert heard["logged_anew"] > len(seeds) // 10
    assert heard["worker_stops_serving"] > len(seeds) // 5
    assert sum(doors[count] for count in doors if count > 1) > len(seeds) // 2
    assert max(doors) == 5


@pytest.mark.parametrize("seed", few_quick(range(1, 11), 3))
def test_no_seed_breaks_a_promise_under_a_lease(seed: int) -> None:
    """Goal: others' records neither keep a dead holder alive nor cost a live one its lease. Method: the same plans, the
    lock a lease over the log, and numbers drawn from it; people who pause fail-over in half of them."""
    plan = leased(all_serving(draw(seed)))
    outcome = simulate(worded(plan) if seed % 2 else plan)
    assert outcome.violations == []
    assert _doors(outcome) > 0


def _doors(outcome: Outcome) -> int:
    """How many replicas gave answers."""
    told = (re.search(r" told .*by=(\S+)", line) for line in outcome.story.lines())
    return len({found[1] for found in told if found})


ON_POSTGRES = range(51, 71)


@pytest.mark.thorough
def test_no_seed_breaks_a_promise_with_the_log_on_postgres() -> None:
    """Goal: the same over connections that break, and servers that are promoted. Method: other seeds; records are
    logged anew, writers end and are replaced."""
    heard: Counter[str] = Counter()
    strikes: Counter[str] = Counter()
    for seed in ON_POSTGRES:
        plan = replace(all_serving(draw(seed)), on_postgres=True)
        outcome = play(plan)
        assert outcome.violations == [], f"seed {seed}"
        strikes.update(what for what, _ in outcome.strikes)
        heard.update(found[1] for line in outcome.story.lines() if (found := HEARD.search(line)))
    print(f"{dict(heard)}, {dict(strikes)}")
    assert [mishap for mishap in ("append_cut", "log_backend_ended", "log_promoted") if not strikes[mishap]] == []
    assert min(heard["logged_anew"], heard["worker_has_a_new_writer"]) > 0


@pytest.mark.parametrize("seed", few_quick(SEEDS[:8], 2))
def test_a_seed_goes_the_same_way_twice(seed: int) -> None:
    """Goal: a failing seed can be replayed. Method: run it twice, compare every event."""
    first, second = (simulate(all_serving(draw(seed))).story.digest() for _ in range(2))
    assert first == second


def test_service_is_paused_and_resumed_in_some_runs() -> None:
    """Goal: the promise about a pause is put to the test. Method: seeds whose plans have one; its barrier is in the
    log of most of them, and workers stop for it."""
    plans = [plan for seed in SEEDS if _pauses(plan := all_serving(draw(seed)))][:6]
    heard: Counter[str] = Counter()
    for plan in plans:
        outcome = simulate(plan)
        assert outcome.violations == [], f"seed {plan.seed}"
        lines = outcome.story.lines()
        heard["paused"] += any("service paused" in line for line in lines)
        heard["barrier"] += any("barrier_in_force" in line and "=pause:" in line for line in lines)
    print(dict(heard))
    assert min(heard["paused"], heard["barrier"]) >= len(plans) // 2


def _pauses(plan: Plan) -> bool:
    return any(fault.kind is FaultKind.SERVICE_PAUSED for fault in plan.faults)
