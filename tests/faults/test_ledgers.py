"""A replica's own ledger is damaged, cut short or deleted: it is made anew from the log, equal to the others'."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from replica.local.cluster import LocalCluster
from replica.local.replica import ReplicaProcess
from replica.store.interface import Row
from tests.faults.recorder import Scenario
from tests.faults.scenarios import wait_for_return
from tests.faults.test_disks import flip
from tests.faults.tools import Words, hand_over_to
from tests.faults.under_load import end_of_log, under_load
from tests.faults.witness import witness
from tests.promises import promised
from tests.waiting import eventually

pytestmark = [
    pytest.mark.only_embedded("completions are in the database"),
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="session"),
]

COVERED_MAX_S = 120.0
SET_ASIDE = "ledger_set_aside"


def flip_throughout(ledger: Path) -> None:
    """Flip a bit in every page but the first, which a start reads."""
    for at_byte in range(6_000, ledger.stat().st_size, 4_096):
        flip(ledger, at_byte)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "flipped": (flip_throughout, SET_ASIDE),
    "cut short": (lambda ledger: os.truncate(ledger, ledger.stat().st_size // 2), SET_ASIDE),
    "deleted": (Path.unlink, "ledger_current"),
}


@pytest.mark.scenario("F16", "the ledger of a passive is flipped, cut short or deleted")
@pytest.mark.parametrize("damage", DAMAGE)
async def test_a_damaged_ledger_is_made_anew(cluster: LocalCluster, scenario: Scenario, damage: str) -> None:
    """Goal: a lost file is only a delay, and no completion is another one. Method: damage a stopped passive's, start
    it, lead with it; then compare the files of all replicas."""
    hurting, said = DAMAGE[damage]
    async with under_load(cluster, scenario, singles=8, batches=1), witness(cluster, scenario) as spender:
        await spender.spend(500)
        hurt = (await cluster.passives())[0]
        await hurt.stop()
        ledger = ledger_of(cluster, hurt)
        for beside in ("-wal", "-shm"):  # of a replica that was stopped in order nothing is left there
            assert not ledger.with_name(ledger.name + beside).exists()
        hurting(ledger)
        words = Words(hurt)
        hurt.start()
        await words.come(said)
        scenario.fired(f"ledger of {hurt.name} {damage}: {said}")
        await wait_for_return(cluster)
        await hand_over_to(cluster, hurt)
        await spender.spend_again()
    await assert_same_ledgers(cluster)


def ledger_of(cluster: LocalCluster, replica: ReplicaProcess) -> Path:
    """Where a replica keeps its ledger."""
    return cluster.config.replica_dir(replica.name) / "ledger" / "ledger.sqlite"


async def assert_same_ledgers(cluster: LocalCluster) -> None:
    """Every replica has the same completions, once all cover the log. No client may write to it meanwhile."""
    newest = await end_of_log(cluster) - 1
    found: list[list[Row]] = []

    async def all_cover() -> bool:
        found.clear()
        for name in cluster.replicas:
            with cluster.config.ledgers(name).export() as export:
                found.append([row for row in export.rows if row[1].log_offset <= newest])
                if export.published_offset < newest:
                    return False
        return True

    await eventually(all_cover, COVERED_MAX_S)
    assert found[0]
    promised(all(rows == found[0] for rows in found), "ledgers differ")
