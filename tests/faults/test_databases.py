"""Databases that operators restore: one that cannot hold every name, and one that is much older than the log."""

from __future__ import annotations

from pathlib import Path

import pytest

from replica.local.cluster import LocalCluster
from replica.notary.codes import Code
from tests.ends import ends_by_design
from tests.faults.dumps import dump, put_aside, restore
from tests.faults.old_backup import CATCH_UP_GOAL_S, catch_up
from tests.faults.recorder import Scenario
from tests.faults.tools import doctor, refused_by_all, start_replicas, stop_replicas
from tests.faults.under_load import end_of_log
from tests.faults.witness import only_witness
from tests.promises import promised

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="session"),
]


@pytest.mark.not_on("embedded", "there is no database")
@pytest.mark.scenario("F31", "the database is restored into one that cannot hold every name")
@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
async def test_a_database_that_is_not_unicode_is_refused(
    cluster: LocalCluster, scenario: Scenario, encoding: str, tmp_path: Path
) -> None:
    """Goal: none serves from it, and the doctor names it. Method: dump, restore into such an encoding; all refuse, no
    record is written; the right one comes back."""
    async with only_witness(cluster, scenario) as spender:
        await spender.spend(200)
        await stop_replicas(cluster)
        await dump(cluster, tmp_path / "notary.dump")
        async with put_aside(cluster):
            await restore(cluster, tmp_path / "notary.dump", encoding)
            end = await end_of_log(cluster)
            with ends_by_design(*cluster.replicas.values()):
                await refused_by_all(cluster, Code.STORE_MISMATCH.name)
            promised(await end_of_log(cluster) == end, "a replica wrote to the log on a database that it must refuse")
            found = await doctor(cluster)
            assert encoding in found["database-encoding"], found
            scenario.fired(f"{encoding}: STORE_MISMATCH at {', '.join(cluster.replicas)}, and found by the doctor")
        await start_replicas(cluster)
        await spender.spend_again()


@pytest.mark.not_on("postgres", "a backup has log and completions of one moment: the indexes are ahead, and all refuse")
@pytest.mark.not_on("embedded", "there is no database")
@pytest.mark.scenario(
    "F32", "a backup made under load is restored much later; from the replicas' start", outage_goal_s=CATCH_UP_GOAL_S
)
async def test_an_old_backup_is_caught_up_with(cluster: LocalCluster, scenario: Scenario, tmp_path: Path) -> None:
    """Goal: no answer is lost or given twice, whatever the backup's age. Method: restore it under a log that is
    far longer; serve."""
    await catch_up(cluster, scenario, tmp_path)
