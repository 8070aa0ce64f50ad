"""An upgrade from a release before to this one and back, one replica or machine at a time, under load."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Collection
from pathlib import Path
from time import monotonic_ns

import pytest

from ledger_api.client import NotaryClient
from replica.local.cluster import ClusterSettings, LocalCluster, remove_cluster
from replica.local.replica import ReplicaProcess
from replica.notary.answers import Notarised, Refused
from replica.notary.errors import Code
from replica.notary.exit_codes import EXIT_CONFIGURATION, EXIT_OK
from tests.faults.recorder import Scenario
from tests.faults.scenarios import AFTER_S, wait_for_return
from tests.faults.under_load import under_load
from tests.log_kind import is_embedded, log_of, serving_of
from tests.runbooks.conftest import staged
from tests.runbooks.releases import build_wheel, install, make_environment, version_of
from tests.runbooks.stage import Stage
from tests.runbooks.test_rolling_upgrade import (
    ONLY_INSTALLED,
    RELEASE_BEFORE,
    change_all,
    old_config_of,
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

FIRST_WITH_LOG_NODES = "62b47b6"  # no release has them yet: the first revision with all of that profile
SECTIONS_SINCE = ("operators",)  # of the configuration, which that revision does not know
HAND_OVER_GOAL_S = 2.0
of_a_release = pytest.mark.only_kafka("0.1.0 has no other log: the machines with log nodes are changed instead")
_NO_NODES = "there are no log nodes"


@of_a_release
@pytest.mark.only_one_serves("0.1.0 does not know the setting, which is added when no replica of 0.1.0 is left")
@pytest.mark.scenario("F23", "0.1.0, this release and 0.1.0 again, one replica at a time")
async def test_a_rolling_upgrade_and_back(scenario: Scenario, short_folder: Path) -> None:
    """Goal: releases side by side give one answer. Method: the wheels, the runbook's commands, a load all the time."""
    before, now = build_wheel(short_folder / "before", RELEASE_BEFORE), build_wheel(short_folder / "now")
    async with staged(
        ClusterSettings(folder=short_folder / "upgrade", newest_formats=False, proxy_ports=False)
    ) as stage:
        cluster = stage.cluster
        prefixes, variables = await on_release(stage, before, short_folder / "machines")
        async with under_load(cluster, scenario, singles=4, batches=1):
            for wheel in (now, before):
                await change_all(stage, prefixes, variables | {"WHEEL": str(wheel), "VERSION": version_of(wheel)})
                assert await versions(cluster) == {version_of(wheel)}
                scenario.fired(f"every replica changed to {version_of(wheel)}")


@of_a_release
@pytest.mark.scenario("F23", "0.1.0, this release, formats raised, 0.1.0 refused")
async def test_formats_are_raised_after_an_upgrade(
    scenario: Scenario, short_folder: Path, request: pytest.FixtureRequest
) -> None:
    """Goal: what 0.1.0 accepted is remembered under rules 2, and 0.1.0 cannot come back. Method: one command on 0.1.0;
    upgrade, refused raises on the way, raise, all under load; the command again, and for another transaction; 0.1.0.

    Where all are to serve, each is told so after the upgrade, and serves when the rules are raised.
    """
    before, now = build_wheel(short_folder / "before", RELEASE_BEFORE), build_wheel(short_folder / "now")
    serving = serving_of(request.config)
    settings = ClusterSettings(folder=short_folder / "raise", newest_formats=False, proxy_ports=False, further=serving)
    async with staged(settings) as stage:
        cluster = stage.cluster
        prefixes, variables = await on_release(stage, before, short_folder / "machines")
        party = cluster.parties[0]
        first, other = party.sign(command_id="kept"), party.sign(command_id="kept")
        async with NotaryClient(cluster.endpoint) as client:
            accepted = await client.submit(first)
            assert isinstance(accepted, Notarised)
            async with under_load(cluster, scenario, singles=4, batches=1):
                raising = ["format", "raise", "--config", str(cluster.config_path)]
                raising += ["--owner", variables["OWNER_CONNINFO"]]
                await stage.play("rolling-upgrade", "Steps", **(variables | of_replica(stage, prefixes, now)))
                assert await ended_with(raising) == EXIT_CONFIGURATION  # the others are of 0.1.0
                await change_all(stage, prefixes, variables | {"WHEEL": str(now), "VERSION": version_of(now)})
                if serving:
                    await configure_all(cluster, prefixes)
                    assert await serving_count(cluster) == 1  # under rules 1
                assert await ended_with(raising) == EXIT_OK
                active = await cluster.wait_for_active()  # without an admin listener: 0.1.0's settings
                await active.stop()
                active.start()
                await cluster.wait_until_ready(list(cluster.replicas))
                await stage.play("format-raise", "Verification", **variables)
                scenario.fired("formats raised under load")
                if serving:
                    await wait_for_return(cluster)
                    assert await serving_count(cluster) == len(cluster.replicas)
                    scenario.fired("all serve")
                again = await client.submit(first)
                assert isinstance(again, Notarised)
                assert (again.duplicate, again.log_offset) == (True, accepted.log_offset)
                (passive, *_) = await cluster.passives()
                await passive.stop()
                install(prefixes[passive.name], before)
                passive.install(python_of(prefixes[passive.name]), old_config_of(cluster), ONLY_INSTALLED)
                passive.start()
                await until_logged(passive, "a stored position has version 2")  # 0.1.0 refuses its index
                scenario.fired(f"{version_of(before)} refused at {passive.name}")
                await passive.stop()
                install(prefixes[passive.name], now)
                config = cluster.config_path if serving else old_config_of(cluster)
                passive.install(python_of(prefixes[passive.name]), config, ONLY_INSTALLED)
                passive.start()
                await cluster.wait_until_ready([passive.name])
            reused = await client.submit(other)  # logged, and in no client's history
            assert isinstance(reused, Refused)
            assert reused.code == Code.COMMAND_ID_REUSED.name


@pytest.mark.not_on("kafka", _NO_NODES)
@pytest.mark.not_on("postgres", _NO_NODES)
@pytest.mark.scenario(
    "F23", "an earlier revision, this one and the earlier again, with log nodes", outage_goal_s=HAND_OVER_GOAL_S
)
async def test_machines_with_log_nodes_change_and_change_back(
    scenario: Scenario, short_folder: Path, request: pytest.FixtureRequest
) -> None:
    """Goal: replicas and log nodes of two releases keep one log. Method: wheels; one machine after the other, the
    active's last, its replica and then its log node, under load all the time; and the same back."""
    before = build_wheel(short_folder / "before", FIRST_WITH_LOG_NODES, "+before")
    now = build_wheel(short_folder / "now")
    settings = ClusterSettings(
        folder=short_folder / "upgrade",
        log=log_of(request.config),
        embedded=is_embedded(request.config),
        haproxy=True,
        proxy_ports=False,
    )
    async with LocalCluster(settings) as cluster:
        leave_out(cluster.config_path, SECTIONS_SINCE)
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


async def configure_all(cluster: LocalCluster, prefixes: dict[str, Path]) -> None:
    """Each replica in turn, the holder of the lock last, is restarted with the cluster's own configuration."""
    for replica in await machines_in_turn(cluster):
        await replica.stop()
        replica.install(python_of(prefixes[replica.name]), cluster.config_path, ONLY_INSTALLED)
        replica.start()
        await wait_for_return(cluster)


async def serving_count(cluster: LocalCluster) -> int:
    """How many replicas serve."""
    return sum(health is not None and health.active for health in (await cluster.healths()).values())


def leave_out(config: Path, sections: Collection[str]) -> None:
    """Take away sections that only a newer release knows; an older one refuses them. They set nothing here."""
    kept = [line for line in config.read_text().splitlines() if line.strip("[]") not in sections]
    config.write_text("\n".join(kept) + "\n")


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


def of_replica(stage: Stage, prefixes: dict[str, Path], wheel: Path) -> dict[str, str]:
    """What the page's steps need for one replica."""
    replica = next(iter(stage.cluster.replicas.values()))
    address = replica.address
    health = f"{address.host}:{address.health_port}"
    return {"R": replica.name, "HEALTH": health, "PREFIX": str(prefixes[replica.name]), "WHEEL": str(wheel)}


async def ended_with(words: list[str]) -> int:
    """The exit code of a command of `notary`."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "replica.cli", *words)
    return await process.wait()


async def until_logged(replica: ReplicaProcess, text: str) -> None:
    """Return once the replica has logged it. Raises TimeoutError."""
    async with asyncio.timeout(60):
        while text not in replica.log_tail():
            await asyncio.sleep(0.2)
