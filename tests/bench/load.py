"""Loads an endpoint with one shape of request: makes the bodies, warms up, measures."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from haproxy.render import Endpoint
from ledger_api.client.signing import Party
from tests.bench.workload import Bodies, write_bodies
from tests.bench.wrk import LoadResult, OutOfBodies, run_wrk

INPUTS = 4
WARM_UP_S = 4.0
WARM_UP_SUBMISSIONS_PER_S = 30_000  # until a rate was seen; a faster endpoint is loaded again, with more
SURPLUS = 2.0  # bodies beyond what the rate that was seen would need
DOUBLINGS_MAX = 5  # of the bodies made, for an endpoint that took all of them too early

_T = TypeVar("_T")


Counters = Callable[[], Awaitable[Mapping[str, float]]]  # what only ever rises, by name


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How requests come in."""

    path: str
    connections: int
    per_body: int = 1
    inputs: int = INPUTS


SINGLE = Shape(path="/v1/submissions", connections=256)
BATCH = Shape(path="/v1/submissions/batch", connections=8, per_body=200)


class LoadGenerator:
    """Keeps files of prepared bodies in a folder and never sends one twice."""

    def __init__(self, folder: Path, parties: Sequence[Party]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._parties = parties
        self._seen_per_s: dict[Shape, float] = {}  # the most requests a second so far

    async def warm_up(self, endpoint: Endpoint, shape: Shape, duration_s: float = WARM_UP_S) -> float:
        """Load for a while; returns requests a second. The rate that was seen is what the next one prepares for."""

        async def run(bodies: Bodies) -> float:
            return (await self._run(endpoint, shape, bodies, 0, duration_s)).per_second

        seen_per_s = self._seen_per_s.get(shape)
        count = (
            int(WARM_UP_SUBMISSIONS_PER_S * duration_s / shape.per_body)
            if seen_per_s is None
            else _count(shape, 1, duration_s, seen_per_s)
        )
        per_second = await self._with_enough(shape, count, run)
        self._seen_per_s[shape] = max(seen_per_s or 0.0, per_second)
        return per_second

    async def measure(
        self, endpoint: Endpoint, shape: Shape, runs: int, run_s: float, per_second: float
    ) -> list[LoadResult]:
        """So many runs, with bodies enough for `per_second` requests. Raises LoadFailed."""

        async def run(bodies: Bodies) -> list[LoadResult]:
            return await self._runs(endpoint, shape, bodies, runs, run_s)

        return await self._with_enough(shape, _count(shape, runs, run_s, per_second), run)

    async def measure_warm(
        self, endpoint: Endpoint, shape: Shape, runs: int, run_s: float, counters: Counters
    ) -> tuple[list[LoadResult], dict[str, float]]:
        """Warm up, then so many runs, and by how much each counter rose in these alone, per submission.

        Raises LoadFailed.
        """

        async def run(bodies: Bodies) -> tuple[list[LoadResult], dict[str, float]]:
            before = await counters()
            results = await self._runs(endpoint, shape, bodies, runs, run_s)
            after = await counters()
            submissions = sum(result.requests for result in results) * shape.per_body
            return results, {name: (value - before.get(name, 0.0)) / submissions for name, value in after.items()}

        await self.warm_up(endpoint, shape)
        per_second = await self.warm_up(endpoint, shape)
        return await self._with_enough(shape, _count(shape, runs, run_s, per_second), run)

    async def once(
        self, endpoint: Endpoint, shape: Shape, bodies: Bodies, warm_up_s: float, run_s: float
    ) -> LoadResult:
        """One run, and a short one before it, with bodies made before, which are then deleted. Raises LoadFailed."""
        first = await self._run(endpoint, shape, bodies, 0, warm_up_s)
        result = await self._run(endpoint, shape, bodies, first.bodies_taken, run_s)
        bodies.path.unlink()
        return result

    async def _with_enough(self, shape: Shape, count: int, run: Callable[[Bodies], Awaitable[_T]]) -> _T:
        """What `run` makes of `count` bodies, or of twice as many, and so on, when it runs out. Raises OutOfBodies."""
        for _ in range(DOUBLINGS_MAX):
            try:
                return await run(await self.bodies(shape, count))
            except OutOfBodies:
                count *= 2
        return await run(await self.bodies(shape, count))

    async def _runs(
        self, endpoint: Endpoint, shape: Shape, bodies: Bodies, runs: int, run_s: float
    ) -> list[LoadResult]:
        results: list[LoadResult] = []
        for _ in range(runs):
            used = sum(result.bodies_taken for result in results)
            results.append(await self._run(endpoint, shape, bodies, used, run_s))
        bodies.path.unlink()
        return results

    async def bodies(self, shape: Shape, count: int) -> Bodies:
        """So many bodies, in the file that had the last ones."""
        path = self._folder / "bodies"
        return await asyncio.to_thread(write_bodies, path, self._parties, count, shape.inputs, shape.per_body)

    @staticmethod
    async def _run(endpoint: Endpoint, shape: Shape, bodies: Bodies, used: int, run_s: float) -> LoadResult:
        at = bodies.offsets[min(used, bodies.count)]
        return await asyncio.to_thread(run_wrk, endpoint, shape.path, bodies.path, at, shape.connections, run_s)


def _count(shape: Shape, runs: int, run_s: float, per_second: float) -> int:
    """Bodies for so many runs at twice the rate that was seen, and for what every connection has begun to send."""
    return int(runs * run_s * per_second * SURPLUS) + runs * shape.connections
