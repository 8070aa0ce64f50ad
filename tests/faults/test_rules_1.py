"""What only a ledger that was never raised has: commands in flight as rows of the database."""

from __future__ import annotations

from pathlib import Path

import pytest

from replica.local.cluster import LocalCluster
from tests.faults.old_backup import CATCH_UP_GOAL_S, catch_up
from tests.faults.recorder import Scenario

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.only_kafka("a backup has log and completions of one moment: the indexes are ahead, and all refuse"),
]

NEWEST_FORMATS = False


@pytest.mark.scenario(
    "F32",
    "a backup made under load is restored much later; from the replicas' start, rules 1",
    outage_goal_s=CATCH_UP_GOAL_S,
)
async def test_an_old_backup_is_caught_up_with_under_rules_1(
    cluster: LocalCluster, scenario: Scenario, tmp_path: Path
) -> None:
    """Goal: whatever its age, no statement has more than a page to look at, and no answer is lost or given twice.
    Method: as under rules 2, from a backup with commands in flight."""
    old = await catch_up(cluster, scenario, tmp_path)
    assert old.in_flight > 0, "a backup without anything in flight proves nothing"
