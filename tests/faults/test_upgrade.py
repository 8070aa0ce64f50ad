"""An upgrade from a release before to this one and back, one replica or machine at a time, under load."""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import monotonic_ns

import pytest

from replica.local.cluster import ClusterSettings, LocalCluster, remove_cluster
from replica.local.replica import ReplicaProcess
from tests.faults.recorder import Scenario
from tests.faults.scenarios import AFTER_S, wait_for_return
from tests.faults.under_load import under_load
from tests.log_kind import is_embedded, log_of
from tests.runbooks.conftest import staged
from tests.runbooks.releases import build_wheel, install, make_environment, version_of
from tests.runbooks.test_rolling_upgrade import (
    BEFORE,
    ONLY_INSTALLED,
    change_all,
    on_release,
    python_of,
    versions,
)

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(1_200),
    pytest.mark.asyncio(loop_scope="session"),
]

HAND_OVER_GOAL_S = 2.0
_NO_NODES = "there are no log nodes"


@pytest.mark.only_kafka("elsewhere the machines with log nodes are changed instead")
@pytest.mark.scenario("F23", "one release, another and the first again, one replica at a time")
async def test_a_rolling_upgrade_and_back(scenario: Scenario, short_folder: Path) -> None:
    """Goal: releases side by side give one answer. Method: the wheels, the runbook's commands, a load all the time."""
    before, now = build_wheel(short_folder / "before", BEFORE), build_wheel(short_folder / "now")
    async with staged(ClusterSettings(folder=short_folder / "upgrade", proxy_ports=False)) as stage:
        cluster = stage.cluster
        prefixes, variables = await on_release(stage, before, short_folder / "machines")
        async with under_load(cluster, scenario, singles=4, batches=1):
            for wheel in (now, before):
                await change_all(stage, prefixes, variables | {"WHEEL": str(wheel), "VERSION": version_of(wheel)})
                assert await versions(cluster) == {version_of(wheel)}
                scenario.fired(f"every replica changed to {version_of(wheel)}")


@pytest.mark.not_on("kafka", _NO_NODES)
@pytest.mark.not_on("postgres", _NO_NODES)
@pytest.mark.scenario("F23", "one release, another and the first again, with log nodes", outage_goal_s=HAND_OVER_GOAL_S)
async def test_machines_with_log_nodes_change_and_change_back(
    scenario: Scenario, short_folder: Path, request: pytest.FixtureRequest
) -> None:
    """Goal: replicas and log nodes of two releases keep one log. Method: wheels; one machine after the other, the
    active's last, its replica and then its log node, under load all the time; and the same back."""
    before = build_wheel(short_folder / "before", BEFORE)
    now = build_wheel(short_folder / "now")
    settings = ClusterSettings(
        folder=short_folder / "upgrade",
        log=log_of(request.config),
        embedded=is_embedded(request.config),
        haproxy=True,
        proxy_ports=False,
    )
    async with LocalCluster(settings) as cluster:
        prefixes = {name: make_environment(short_folder / "machines" / name) for name in cluster.replicas}
        for replica in await machines_in_turn(cluster):
            await change_machine(cluster, replica, prefixes[replica.name], before)
        async with under_load(cluster, scenario, singles=4, batches=1) as load:
            for wheel in (now, before):
                for replica in await machines_in_turn(cluster):
                    changed_ns = monotonic_ns()
                    await change_machine(cluster, replica, prefixes[replica.name], wheel)
                    await asyncio.sleep(AFTER_S)
                    scenario.outage(load, changed_ns, monotonic_ns())
                assert await versions(cluster) == {version_of(wheel)}
                scenario.fired(f"every replica and log node changed to {version_of(wheel)}")
        assert load.given_up() == 0
    await remove_cluster(settings.folder)


async def machines_in_turn(cluster: LocalCluster) -> list[ReplicaProcess]:
    """The replicas, the active one last."""
    active = await cluster.wait_for_active()
    return [*(replica for replica in cluster.replicas.values() if replica is not active), active]


async def change_machine(cluster: LocalCluster, replica: ReplicaProcess, prefix: Path, wheel: Path) -> None:
    """Install a release for a replica and the log node beside it; returns once all are there again."""
    node = cluster.log_nodes[replica.name]
    await replica.stop()
    await node.stop()
    await asyncio.to_thread(install, prefix, wheel)
    python = python_of(prefix)
    node.install(python, ONLY_INSTALLED)
    node.start()
    replica.install(python, cluster.config_path, ONLY_INSTALLED)
    replica.start()
    await wait_for_return(cluster)
