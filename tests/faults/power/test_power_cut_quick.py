"""What CI plays of the power cuts: the profile with the fewest servers, whatever the run's own is."""

from __future__ import annotations

import pytest

from replica.local.cluster import LogKind
from tests.faults.lab.power import LabOnDisks
from tests.faults.lab.scene import scene
from tests.faults.power.test_power_cuts import GIVE_UP_S, SITE_GOAL_S, all_power_lost
from tests.faults.recorder import Scenario

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300), pytest.mark.asyncio(loop_scope="session")]

LOG: LogKind = "postgres"


@pytest.mark.short
@pytest.mark.scenario("F38", "all power is lost, log on Postgres; from its return", outage_goal_s=SITE_GOAL_S)
async def test_no_answer_is_lost_with_all_power(lab: LabOnDisks, scenario: Scenario) -> None:
    """Goal and method: as at full length, with less load."""
    async with scene(lab, scenario, give_up_s=GIVE_UP_S) as now:
        await now.active_replica()
        await all_power_lost(lab, now, unsynced_s=2.0)
