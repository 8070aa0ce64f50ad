"""One log over three sites: a log node and a replica at each, long ways between all of them, and one site cut off."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from statistics import median
from time import monotonic_ns

import pytest

from tests.faults.lab.lab import REPLICAS, Lab
from tests.faults.lab.scene import scene
from tests.faults.recorder import Scenario
from tests.faults.under_load import under_load

_NO_NODES = "there are no log nodes"
pytestmark = [
    pytest.mark.not_on("kafka", _NO_NODES),
    pytest.mark.not_on("postgres", _NO_NODES),
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="session"),
]

LIGHT_S = 8.0  # of two workers, which shows how long an answer takes
LOAD_S = 15.0  # of the usual load, before the cut
SITE_GOAL_S = 4.5  # as for an active's machine that loses its link


@pytest.mark.scenario("F36", "one log over three sites, that of the active is cut off", outage_goal_s=SITE_GOAL_S)
@pytest.mark.parametrize("way_ms", [0, 5, 10, 20])
async def test_a_site_that_is_cut_off_loses_nothing(lab: Lab, scenario: Scenario, way_ms: int) -> None:
    """Goal: the other two sites go on with every answer. Method: delay what any site sends to another; measure; cut the
    active's site off; a replica at another site serves; all answers are audited against the log."""
    with lab.network.slowed(REPLICAS, REPLICAS, way_ms / 1e3, 0.0):
        async with under_load(lab, scenario, singles=2, batches=0) as light:
            await lab.wait_for_active()
            began_ns = monotonic_ns()
            await asyncio.sleep(LIGHT_S)
            _, alone_ms = served(light.history, began_ns, monotonic_ns())
        async with scene(lab, scenario) as now:
            active, began_ns = await now.active_replica(), monotonic_ns()
            await asyncio.sleep(LOAD_S)
            per_s, loaded_ms = served(now.load.history, began_ns, monotonic_ns())
            scenario.fired(
                f"{way_ms} ms each way: median {alone_ms:.1f} ms for two workers; under load {per_s:.0f} submissions a"
                f" second, median {loaded_ms:.0f} ms"
            )
            await now.replaced(lab.network.unplugged(active.name), active, "and its site cut off")


def served(history: Path, began_ns: int, ended_ns: int) -> tuple[float, float]:
    """Successes a second, and the median of their times in ms, of those asked for and answered in between."""
    asked, took_ms = {}, []
    for line in map(
        json.loads, history.read_text().splitlines(keepends=True)[:-1]
    ):  # the client may write the last one
        key = line.get("process"), line.get("op")
        if line["type"] == "invoke" and line["at_ns"] >= began_ns:
            asked[key] = line["at_ns"]
        elif line["type"] == "ok" and key in asked and line["at_ns"] <= ended_ns:
            took_ms.append((line["at_ns"] - asked[key]) / 1e6)
    return len(took_ms) / (ended_ns - began_ns) * 1e9, median(took_ms)
