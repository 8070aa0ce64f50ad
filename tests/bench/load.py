"""Loads an endpoint with one shape of request: makes the bodies, warms up, measures."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from haproxy.render import Endpoint
from ledger_api.client.signing import Party
from tests.bench.workload import Bodies, write_bodies
from tests.bench.wrk import LoadResult, run_wrk

INPUTS = 4
WARM_UP_S = 4.0
WARM_UP_SUBMISSIONS_PER_S = 30_000  # more than will be needed; what is left over serves the runs
SURPLUS = 2.0  # bodies beyond what the warm-up's rate would need


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

    async def warm_up(self, endpoint: Endpoint, shape: Shape, duration_s: float = WARM_UP_S) -> float:
        """Load for a while; returns requests a second."""
        bodies = await self._bodies(shape, int(WARM_UP_SUBMISSIONS_PER_S * duration_s / shape.per_body))
        return (await self._run(endpoint, shape, bodies, 0, duration_s, 0.0)).per_second

    async def measure(
        self, endpoint: Endpoint, shape: Shape, runs: int, run_s: float, per_second: float, pause_ms: float = 0.0
    ) -> list[LoadResult]:
        """So many runs, with bodies enough for `per_second` requests. Raises LoadFailed."""
        bodies = await self._enough(shape, runs, run_s, per_second)
        return await self._runs(endpoint, shape, bodies, runs, run_s, pause_ms)

    async def measure_warm(
        self, endpoint: Endpoint, shape: Shape, runs: int, run_s: float, counters: Counters
    ) -> tuple[list[LoadResult], dict[str, float]]:
        """Warm up, then so many runs, and by how much each counter rose in these alone, per submission.

        Raises LoadFailed.
        """
        await self.warm_up(endpoint, shape)
        bodies = await self._enough(shape, runs, run_s, await self.warm_up(endpoint, shape))
        before = await counters()
        results = await self._runs(endpoint, shape, bodies, runs, run_s, 0.0)
        after = await counters()
        submissions = sum(result.requests for result in results) * shape.per_body
        return results, {name: (value - before.get(name, 0.0)) / submissions for name, value in after.items()}

    async def _runs(
        self, endpoint: Endpoint, shape: Shape, bodies: Bodies, runs: int, run_s: float, pause_ms: float
    ) -> list[LoadResult]:
        results: list[LoadResult] = []
        for _ in range(runs):
            used = sum(result.bodies_taken for result in results)
            results.append(await self._run(endpoint, shape, bodies, used, run_s, pause_ms))
        bodies.path.unlink()
        return results

    async def _enough(self, shape: Shape, runs: int, run_s: float, per_second: float) -> Bodies:
        return await self._bodies(shape, int(runs * run_s * per_second * SURPLUS) + runs * shape.connections)

    async def _bodies(self, shape: Shape, count: int) -> Bodies:
        path = self._folder / "bodies"
        return await asyncio.to_thread(write_bodies, path, self._parties, count, shape.inputs, shape.per_body)

    @staticmethod
    async def _run(
        endpoint: Endpoint, shape: Shape, bodies: Bodies, used: int, run_s: float, pause_ms: float
    ) -> LoadResult:
        at = bodies.offsets[min(used, bodies.count)]
        return await asyncio.to_thread(
            run_wrk, endpoint, shape.path, bodies.path, at, shape.connections, run_s, pause_ms
        )
