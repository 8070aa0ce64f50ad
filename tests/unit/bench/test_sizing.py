"""The machines that a target needs: arithmetic on what was measured, and a page that cannot disagree with itself."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from math import inf, nan
from pathlib import Path

import msgspec
import pytest

from haproxy.render import Endpoint
from tests.bench.load import LoadGenerator, Shape
from tests.bench.machines import (
    ACTIVE_CORE,
    ACTIVE_FRONT_ENDS,
    COMPLETIONS,
    INDEX,
    PASSIVE_FRONT_ENDS,
    PLACES,
    ROLES,
    WAYS,
    Deployment,
    Each,
    Machine,
    Measured,
    Part,
    SizingError,
    deployment_for,
)
from tests.bench.sizing_page import BEGIN, END, parse, render, replaced
from tests.bench.usage import cpu_s
from tests.bench.workload import Bodies
from tests.bench.wrk import LoadResult

PAGE = Path(__file__).parents[3] / "docs/reference-deployment.md"
NAMES = [part for role in ROLES for part in role.parts]
MEASURED = Measured(
    tps=Each(3_000, 6_000),
    parts={name: Part(2, Each(100.0 + number, 50.5), 120.0) for number, name in enumerate(NAMES)},
    core_thread_us=Each(80.0, 40.0),
    disk_bytes={place: 100.0 * number for number, place in enumerate(PLACES, start=1)},
    network_bytes={way: Each(900.0, 700.0) for way in WAYS},
)
TARGET = Each(5_000, 10_000)


def machine(deployment: Deployment, name: str) -> Machine:
    return next(found for found in deployment.machines if found.role.name == name)


def test_a_machine_has_the_processors_of_its_parts_at_sixty_percent() -> None:
    """Goal: cores for both loads. Method: core and front ends use 100 + 101 µs and 2 × 50.5 µs: add up by hand."""
    active = machine(deployment_for(MEASURED, TARGET), "replica, active")
    assert active.cores.single == pytest.approx(201e-6 * 5_000 / 0.6)
    assert active.cores.batch == pytest.approx(101e-6 * 10_000 / 0.6)


def test_a_volume_has_room_to_compact_and_a_third_left_over() -> None:
    """Goal: an index counts twice, a table once. Method: 200 bytes an index, 300 the table, by hand."""
    needed = deployment_for(MEASURED, TARGET)
    assert machine(needed, "replica, passive").volume_bytes == pytest.approx(2 * 200 * 1.5)
    assert machine(needed, "Postgres standby").volume_bytes == pytest.approx(300 * 1.5)
    assert machine(needed, "HAProxy that has the address").volume_bytes == 0


def test_front_ends_grow_with_the_rate_and_their_memory_with_them() -> None:
    """Goal: no front end is busier than it should be. Method: at 101 µs each, what keeps 1.5 of them busy, 3.5."""
    measured = replace(MEASURED, core_thread_us=Each(1.0, 1.0))
    two, four = (deployment_for(measured, Each(front_ends * 0.6 / 101e-6, 1)) for front_ends in (1.5, 3.5))
    assert (two.front_ends, four.front_ends) == (2, 4)
    of_two, of_four = (machine(needed, "replica, active").memory_mib for needed in (two, four))
    assert of_two == pytest.approx((120 + 120) / 0.6)
    assert of_four == pytest.approx((120 + 120 * 2) / 0.6)
    assert machine(two, "broker that leads").memory_mib == machine(four, "broker that leads").memory_mib


def test_a_target_beyond_the_busiest_thread_is_refused() -> None:
    """Goal: nobody buys processors that cannot help. Method: 80 µs a request: 12,500/s is all, and one more is not."""
    assert deployment_for(MEASURED, Each(12_500, 1)).core_thread_busy.single == pytest.approx(1)
    with pytest.raises(SizingError, match=r"ends at 12,500 single requests or 25,000 batched"):
        deployment_for(MEASURED, Each(12_501, 1))
    with pytest.raises(SizingError, match="lower the target"):
        deployment_for(MEASURED, Each(1, 25_001))


@pytest.mark.parametrize("target", [(0, 1), (1, 0), (-1, 1), (nan, 1), (1, inf)])
def test_a_target_is_a_rate(target: tuple[float, float]) -> None:
    """Goal: no machines for nonsense. Method: rates that are none."""
    with pytest.raises(SizingError):
        deployment_for(MEASURED, Each(*target))


@pytest.mark.parametrize("part", NAMES)
def test_figures_must_be_complete(part: str) -> None:
    """Goal: what was not measured is not taken for free. Method: leave one part out."""
    with pytest.raises(SizingError, match=f"not measured: {part}"):
        replace(MEASURED, parts={name: cost for name, cost in MEASURED.parts.items() if name != part})


@pytest.mark.parametrize(
    "changes",
    [
        {"disk_bytes": {**MEASURED.disk_bytes, INDEX: -1.0}},
        {"disk_bytes": {**MEASURED.disk_bytes, COMPLETIONS: nan}},
        {"disk_bytes": {INDEX: 1.0}},
        {"network_bytes": {}},
        {"core_thread_us": Each(0, 1)},
        {"parts": {**MEASURED.parts, ACTIVE_CORE: Part(1, Each(1, 1), inf)}},
        {"parts": {**MEASURED.parts, ACTIVE_FRONT_ENDS: Part(0, Each(1, 1), 1)}},
    ],
)
def test_figures_must_be_amounts(changes: dict[str, object]) -> None:
    """Goal: bad figures stop at the door. Method: less than nothing, no number, places and ways that are missing."""
    with pytest.raises(SizingError):
        replace(MEASURED, **changes)  # type: ignore[arg-type]


def test_a_page_can_be_read_back() -> None:
    """Goal: a page holds all that its machines come from. Method: write, read, compare; as JSON, too."""
    assert parse(render(MEASURED, TARGET)) == (MEASURED, TARGET)
    assert msgspec.json.decode(msgspec.json.encode(MEASURED), type=Measured) == MEASURED
    assert PASSIVE_FRONT_ENDS in render(MEASURED, TARGET)
    for other in ("", "| a | b |\n|---|---|\n| 1 | 2 |\n"):
        with pytest.raises(SizingError, match="not a page of sizing"):
            parse(other)


def test_the_reference_deployment_agrees_with_itself() -> None:
    """Goal: no table of machines that the figures above it do not yield. Method: read the page, derive it again."""
    page = PAGE.read_text()
    tables = page.partition(BEGIN)[2].partition(END)[0]
    assert tables == render(*parse(tables)), (
        "run: python -m tests.bench.sizing_page --into docs/reference-deployment.md"
    )
    assert replaced(page, tables) == page
    with pytest.raises(SizingError, match="no lines"):
        replaced("# Another page\n", tables)


async def test_only_the_runs_count(tmp_path: Path) -> None:
    """Goal: neither warm-up nor the making of bodies is in a cost. Method: a counter that each of them raises."""
    used = {"s": 0.0}

    class Load(LoadGenerator):
        async def bodies(self, shape: Shape, count: int) -> Bodies:
            used["s"] += 1_000
            (tmp_path / "bodies").touch()
            return Bodies(tmp_path / "bodies", [0, 1])

        async def _run(self, *_: object) -> LoadResult:  # type: ignore[override]
            used["s"] += 6.0
            return LoadResult(requests=3, bodies_taken=3, duration_s=1.0, latency_ms={}, cpu_s=0.0)

    async def counters() -> dict[str, float]:
        return dict(used)

    shape = Shape(path="/", connections=1, per_body=2)
    results, each = await Load(tmp_path, []).measure_warm(Endpoint(port=1), shape, 4, 1.0, counters)
    assert len(results) == 4
    assert each == {"s": 4 * 6.0 / (4 * 3 * 2)}


def test_what_a_child_used_is_not_lost_with_it() -> None:
    """Goal: short-lived workers of a server count. Method: a child uses 0.3 s of processor time and ends."""
    before = cpu_s({"part": [os.getpid()]})["part"]
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-c", burn], check=True)
    assert cpu_s({"part": [os.getpid()]})["part"] - before >= 0.2  # ticks are cut off
