"""The load generator: an endpoint that is faster than expected is measured again with more bodies."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from haproxy.render import Endpoint
from ledger_api.client.signing import Party
from tests.bench import load
from tests.bench.load import DOUBLINGS_MAX, LoadGenerator, Shape
from tests.bench.workload import Bodies
from tests.bench.wrk import LoadResult, OutOfBodies
from tests.worlds.beginning import LEDGER

ENDPOINT = Endpoint(host="127.0.0.1", port=1)
SHAPE = Shape(path="/", connections=1)
RUN_S = 1.0


class Fast:
    """Takes `rate` bodies a second, from files of as many lines as were asked for."""

    def __init__(self, rate: int) -> None:
        self.rate = rate
        self.made: list[int] = []

    def write_bodies(self, path: Path, parties: object, count: int, inputs: int, per_body: int) -> Bodies:
        self.made.append(count)
        path.touch()
        return Bodies(path, list(range(count + 1)))

    def run_wrk(
        self,
        endpoint: Endpoint,
        path: str,
        bodies: Path,
        from_byte: int,
        connections: int,
        duration_s: float,
    ) -> LoadResult:
        wanted = int(self.rate * duration_s)
        if self.made[-1] - from_byte < wanted:
            raise OutOfBodies(f"wrk ran out of bodies after {self.made[-1] - from_byte}")
        return LoadResult(wanted, wanted, duration_s, {}, 0.0)


@pytest.fixture
def generator(tmp_path: Path) -> LoadGenerator:
    return LoadGenerator(tmp_path / "bodies", [Party("O=Bank,L=London,C=GB", LEDGER)])


def made_fast(monkeypatch: pytest.MonkeyPatch, rate: int) -> Fast:
    fast = Fast(rate)
    monkeypatch.setattr(load, "write_bodies", fast.write_bodies)
    monkeypatch.setattr(load, "run_wrk", fast.run_wrk)
    return fast


async def test_an_endpoint_that_is_faster_than_expected_is_loaded_again_with_more(
    generator: LoadGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a benchmark does not fail on a fast machine. Method: an endpoint at three times the assumed rate."""
    fast = made_fast(monkeypatch, rate=3 * load.WARM_UP_SUBMISSIONS_PER_S)
    assert await generator.warm_up(ENDPOINT, SHAPE, RUN_S) == fast.rate
    assert fast.made == [30_000, 60_000, 120_000]


async def test_bodies_are_made_for_the_rate_that_was_seen(
    generator: LoadGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: few bodies for a slow endpoint, twice as many when it turns fast. Method: a shape, then another."""
    fast = made_fast(monkeypatch, rate=1_000)
    await generator.warm_up(ENDPOINT, SHAPE, RUN_S)
    await generator.warm_up(ENDPOINT, SHAPE, RUN_S)
    fast.rate = 3_000
    assert await generator.warm_up(ENDPOINT, SHAPE, RUN_S) == 3_000
    other = Shape(path="/", connections=2)
    await generator.warm_up(ENDPOINT, other, RUN_S)
    assert fast.made == [30_000, 2_001, 2_001, 4_002, 30_000]


async def test_counters_are_those_of_the_runs_that_had_enough(
    generator: LoadGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: what a run that ran out has used is in no figure. Method: warm-ups at a third of the rate of the runs."""
    fast = made_fast(monkeypatch, rate=1_000)
    read: list[float] = []

    async def counters() -> Mapping[str, float]:
        read.append(100.0 * len(read))
        fast.rate = 3_000
        return {"core": read[-1]}

    results, used = await generator.measure_warm(ENDPOINT, SHAPE, 2, RUN_S, counters)
    assert [result.requests for result in results] == [3_000, 3_000]
    assert len(read) == 3  # before the runs that ran out; before and after those that did not
    assert used == {"core": 100.0 / 6_000}


async def test_an_endpoint_beyond_all_bounds_is_an_error(
    generator: LoadGenerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: it ends. Method: an endpoint that takes whatever there is."""
    fast = made_fast(monkeypatch, rate=10**9)
    with pytest.raises(OutOfBodies):
        await generator.measure(ENDPOINT, SHAPE, 1, RUN_S, 100.0)
    assert len(fast.made) == DOUBLINGS_MAX + 1
