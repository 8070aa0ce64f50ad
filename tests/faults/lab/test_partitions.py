"""Cuts: packets between some machines are silently dropped, while all others pass as before."""

from __future__ import annotations

import asyncio

import pytest

from tests.faults.lab.lab import BROKERS, DATABASES, Lab
from tests.faults.lab.scene import scene, within
from tests.faults.load import client_load
from tests.faults.recorder import Scenario

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="session"),
]

ROUNDS = 3
CUT_S = 8.0  # of a cut that must have no effect: longer than lease, hold-down and every time-out
PARTITION_GOAL_S = 4.5  # lease + 1.5 s


@pytest.mark.scenario("F4", "the active's machine loses its link", outage_goal_s=PARTITION_GOAL_S)
async def test_a_machine_without_a_link_is_replaced(lab: Lab, scenario: Scenario) -> None:
    """Goal: half-open connections free the lock by the lease. Method: no carrier at the active's machine, no reset."""
    async with scene(lab, scenario) as now:
        for _ in range(ROUNDS):
            active = await now.active_replica()
            await now.replaced(lab.network.unplugged(active.name), active, "lost its link")


@pytest.mark.not_on("embedded", "there is no database")
@pytest.mark.not_on("kafka-workers", "a worker serves on without the database")
@pytest.mark.not_on("raft-workers", "a worker serves on without the database")
@pytest.mark.scenario("F5", "the active is cut off from the database only", outage_goal_s=PARTITION_GOAL_S)
async def test_an_active_without_the_database_serves_nothing(lab: Lab, scenario: Scenario) -> None:
    """Goal: it stops by itself before its lock can be free. Method: drop packets; a client of its own keeps asking."""
    async with scene(lab, scenario) as now:
        for number in range(ROUNDS):
            active = await now.active_replica()
            direct = client_load(lab, f"{now.load.name}-direct-{number}", behind=active, singles=4, batches=1)
            direct.start()
            try:
                await now.replaced(lab.network.cut([active.name], DATABASES), active, "cut off from the database")
            finally:
                await direct.stop()
            scenario.add_history(direct.history)


@pytest.mark.only_kafka("the log is in the database: as F5")
@pytest.mark.scenario("F6", "the active is cut off from Kafka only", outage_goal_s=PARTITION_GOAL_S)
async def test_an_active_without_the_log_hands_over_and_stays_away(lab: Lab, scenario: Scenario) -> None:
    """Goal: a peer that reaches the log leads, and it stays so. Method: drop packets to all brokers for a while."""
    async with scene(lab, scenario) as now:
        for _ in range(ROUNDS):
            active = await now.active_replica()
            epoch_before = now.claims.newest_epoch
            await now.replaced(lab.network.cut([active.name], BROKERS), active, "cut off from Kafka")
            await asyncio.sleep(CUT_S / 2)
            assert now.claims.newest_epoch == epoch_before + 1, "leadership went to and fro"


@pytest.mark.scenario("F7", "a passive is cut off")
@pytest.mark.parametrize(
    "others",
    [
        pytest.param(DATABASES, id="database", marks=pytest.mark.not_on("embedded", "there is no database")),
        pytest.param(BROKERS, id="Kafka", marks=pytest.mark.only_kafka("the log is in the database")),
    ],
)
async def test_a_passive_that_is_cut_off_disturbs_nobody(lab: Lab, scenario: Scenario, others: tuple[str, ...]) -> None:
    """Goal: only the passive notices: it is not ready. Method: drop its packets, look at its health and at the load."""
    async with scene(lab, scenario) as now:
        await now.active_replica()
        (passive, _) = await lab.passives()
        epoch_before = now.claims.newest_epoch

        async def unready() -> bool:
            health = (await lab.healths())[passive.name]
            return health is not None and not health.ready

        with lab.network.cut([passive.name], others):
            await within(CUT_S, unready, f"{passive.name} says that it is ready and cannot be")
            scenario.fired(f"{passive.name} cut off from {', '.join(others)}, and says that it is not ready")
            await asyncio.sleep(CUT_S)
        assert now.claims.newest_epoch == epoch_before
