"""Whole replicas whose log is on Postgres: seeds that break no promise, and the mistakes that they find."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import pytest

from replica.log.postgres import log as product
from replica.log.postgres.delivery import Delivery
from replica.log.postgres.memory import MemoryServer, MemoryWeather
from tests.few import few_and_others, few_quick
from tests.simulation.draw import draw
from tests.simulation.postgres_log import PostgresWorld
from tests.simulation.world import simulate

SEEDS = range(1, 121)
FEW = SEEDS[65:85]  # in which each mishap strikes
MISHAPS = ("append_cut", "append_held", "log_backend_ended", "log_promoted", "log_unreachable")


@pytest.mark.parametrize("seeds", few_and_others(FEW, SEEDS))
def test_no_seed_breaks_a_promise_and_every_mishap_happens(seeds: list[int]) -> None:
    """Goal: the notary keeps its promises on this log. Method: many seeds; each mishap of the log strikes in some."""
    strikes: Counter[str] = Counter()
    operations = 0
    for seed in seeds:
        outcome = simulate(draw(seed), PostgresWorld)
        assert outcome.violations == [], f"seed {seed}"
        operations += outcome.operations
        strikes.update(what for what, _ in outcome.strikes)
    print(f"{len(seeds)} seeds, {operations} operations, {dict(strikes)}")
    assert [mishap for mishap in MISHAPS if not strikes[mishap]] == []


@pytest.mark.parametrize("seed", few_quick(SEEDS[:10], 2))
def test_a_seed_goes_the_same_way_twice(seed: int) -> None:
    """Goal: a seed replays its failure. Method: twice; each story as it is at the end of its run: a killed process that
    waits in a `finally` is noted once its memory is freed."""
    first, second = (simulate(draw(seed), PostgresWorld).story.digest() for _ in range(2))
    assert first == second


class HeadNotLocked(MemoryServer):
    """Offsets from a sequence: drawn at once, shown in the order of commits."""

    async def append(self, values: Sequence[bytes], backend: int = 0) -> int:
        first, self.end_offset = self.end_offset, self.end_offset + len(values)
        await asyncio.sleep(self.weather.commit_s())
        self.commit(first, values)
        self._replicate_later(self.position)
        return first


class WithoutLock(PostgresWorld):
    def make_server(self, weather: MemoryWeather) -> MemoryServer:
        return HeadNotLocked(weather=weather)


class Careless(Delivery):
    """Returns what no standby has."""

    def release(self, flushed: int | None) -> None:
        super().release(1 << 62)


@pytest.mark.parametrize("mistake", ["head not locked", "delivered before the standby has it"])
def test_a_mistake_is_found(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the seeds can fail. Method: one mistake at a time."""
    world = WithoutLock if mistake == "head not locked" else PostgresWorld
    if world is PostgresWorld:
        monkeypatch.setattr(product, "Delivery", Careless)
    assert any(simulate(draw(seed), world).violations for seed in SEEDS)
