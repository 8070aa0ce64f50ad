"""An upgrade from the release before to this one and back, one replica at a time, under load."""

from __future__ import annotations

from pathlib import Path

import pytest

from replica.local.cluster import ClusterSettings
from tests.faults.recorder import Scenario
from tests.faults.under_load import under_load
from tests.runbooks.conftest import staged
from tests.runbooks.releases import build_wheel, version_of
from tests.runbooks.test_rolling_upgrade import RELEASE_BEFORE, change_all, on_release, versions

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(1_200),
    pytest.mark.asyncio(loop_scope="session"),
]


@pytest.mark.scenario("F23", "0.1.0, this release and 0.1.0 again, one replica at a time")
async def test_a_rolling_upgrade_and_back(scenario: Scenario, short_folder: Path) -> None:
    """Goal: releases side by side give one answer. Method: the wheels, the runbook's commands, a load all the time."""
    before, now = build_wheel(short_folder / "before", RELEASE_BEFORE), build_wheel(short_folder / "now")
    async with staged(ClusterSettings(folder=short_folder / "upgrade")) as stage:
        cluster = stage.cluster
        prefixes, variables = await on_release(stage, before, short_folder / "machines")
        async with under_load(cluster, scenario, singles=4, batches=1):
            for wheel in (now, before):
                await change_all(stage, prefixes, variables | {"WHEEL": str(wheel), "VERSION": version_of(wheel)})
                assert await versions(cluster) == {version_of(wheel)}
                scenario.fired(f"every replica changed to {version_of(wheel)}")
