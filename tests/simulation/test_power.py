"""Whole replicas whose power is cut: what is known to be lost stops service, and nothing else does."""

from __future__ import annotations

from collections import Counter

import pytest
from msgspec.structs import replace

from tests.few import few_quick
from tests.simulation.draw import draw, draw_profile
from tests.simulation.kinds import play
from tests.simulation.plan import FaultKind, Plan
from tests.simulation.power import REPLICATED, SYNCED, with_damage, with_power_cut
from tests.simulation.workers import all_serving

SEEDS = range(1, 41)


@pytest.mark.parametrize("seed", few_quick(range(1, 13), 5))
def test_a_synced_log_loses_nothing(seed: int) -> None:
    """Goal: after a power cut service goes on by itself, with every answer kept. Method: brokers, replicas or both lose
    power, indexes and seen files go back; one replica serves, or all; the log in a topic, or on Postgres."""
    serving_all = all_serving(draw(seed))
    on_postgres = replace(draw(seed) if seed % 2 else serving_all, on_postgres=True)
    for plan in (draw_profile(seed), serving_all, on_postgres):
        outcome = play(replace(with_power_cut(plan), durability=SYNCED))
        assert outcome.violations == [], plan


def test_what_a_replicated_log_loses_is_noticed_where_a_mark_is_left() -> None:
    """Goal: the table of promises, to the letter. Method: the log loses its tail in most seeds; service stops in some,
    and goes on in others; a disk of another notary stops nobody else."""
    strikes: Counter[str] = Counter()
    stopped: Counter[str] = Counter()
    for seed in SEEDS:
        plan = _plan(seed)
        outcome = play(plan)
        assert outcome.violations == [], f"seed {seed}"
        strikes.update(what for what, _ in outcome.strikes)
        if plan.durability == REPLICATED:
            refused = any("LOG_TRUNCATED" in line or "LOG_MISMATCH" in line for line in outcome.story.lines())
            stopped["noticed" if refused else "goes on"] += 1
    print(f"{dict(stopped)}, {dict(strikes)}")
    mishaps = (FaultKind.POWER_CUT, FaultKind.PUBLICATION_HELD, FaultKind.PEERS_APART, FaultKind.DISK_CLONED)
    assert [mishap for mishap in mishaps if not strikes[mishap]] == []
    assert min(stopped["noticed"], stopped["goes on"]) > 5


@pytest.mark.parametrize("seed", few_quick(SEEDS[:12], 5))
def test_a_damaged_position_stops_its_own_replica_only(seed: int) -> None:
    """Goal: one damaged disk does not stop all. Method: an index names another record than the log has, under the
    barrier that the log has; one replica serves, or all; the others must serve on."""
    for plan in (draw(seed), all_serving(draw(seed))):
        outcome = play(with_damage(plan))
        assert outcome.violations == [], seed


@pytest.mark.parametrize("seed", few_quick(SEEDS[:4], 1))
def test_a_seed_goes_the_same_way_twice(seed: int) -> None:
    """Goal: a failing seed can be replayed. Method: run it twice, compare every event."""
    first, second = (play(_plan(seed)).story.digest() for _ in range(2))
    assert first == second


def _plan(seed: int) -> Plan:
    return with_power_cut(all_serving(draw(seed)) if seed % 2 else draw(seed))
