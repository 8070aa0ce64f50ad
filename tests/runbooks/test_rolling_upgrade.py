"""The release before, this one, and the release before again, one replica at a time, under load. See test_runbooks."""

from __future__ import annotations

from pathlib import Path

import pytest

from replica.local.cluster import ClusterSettings, LocalCluster
from replica.local.participant import DATABASE, OWNER, ParticipantFiles
from tests.runbooks.conftest import all_well, staged, under_load
from tests.runbooks.releases import build_wheel, install, make_environment, version_of
from tests.runbooks.stage import Stage

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(1_200),
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),
]

BEFORE = "+before"  # what the version of the release before ends in: these files, until there was one
# `python -m` would find this clone's packages in the working directory, before any release that is installed.
ONLY_INSTALLED = {"PYTHONPATH": "", "PYTHONSAFEPATH": "1"}


async def test_rolling_upgrade(folder: Path) -> None:
    """Goal: no answer is lost or changed between releases. Method: one, play to the other, play back, audit all."""
    before, now = build_wheel(folder / "before", BEFORE), build_wheel(folder / "now")
    async with staged(ClusterSettings(folder=folder / "upgrade", proxy_ports=False)) as stage:
        cluster = stage.cluster
        prefixes, variables = await on_release(stage, before, folder / "machines")
        assert await versions(cluster) == {version_of(before)}
        async with under_load(stage, "rolling-upgrade"):
            for wheel in (now, before):
                await change_all(stage, prefixes, variables | {"WHEEL": str(wheel), "VERSION": version_of(wheel)})
                assert await versions(cluster) == {version_of(wheel)}
    stage.assert_all_played("rolling-upgrade")


async def on_release(stage: Stage, wheel: Path, machines: Path) -> tuple[dict[str, Path], dict[str, str]]:
    """Run every replica on an older release; its environments, and what the page's commands need to leave it."""
    cluster = stage.cluster
    prefixes = {name: make_environment(machines / name) for name in cluster.replicas}
    for name, replica in cluster.replicas.items():
        install(prefixes[name], wheel)
        await replica.stop()
        replica.install(python_of(prefixes[name]), cluster.config_path, ONLY_INSTALLED)
        replica.start()
    await all_well(stage)
    files = ParticipantFiles(cluster.folder)
    return prefixes, {
        "NEW_NOTARY": "notary",
        "NEW_CONFIG": str(cluster.config_path),
        "OWNER_CONNINFO": cluster.postgres.dsn(DATABASE, OWNER, files.password(OWNER)),
    }


def python_of(prefix: Path) -> Path:
    """The interpreter of an environment."""
    return prefix / "bin" / "python"


async def change_all(stage: Stage, prefixes: dict[str, Path], variables: dict[str, str]) -> None:
    """Play the page for each replica, the active one last."""
    cluster = stage.cluster
    await all_well(stage)
    active = await cluster.wait_for_active()
    for replica in [*await cluster.passives(), active]:
        address = replica.address
        about = {"R": replica.name, "HEALTH": f"{address.host}:{address.health_port}"}
        about["PREFIX"] = str(prefixes[replica.name])
        for section in ("Checks", "Steps", "Verification"):
            await stage.play("rolling-upgrade", section, **about, **variables)
    await all_well(stage)


async def versions(cluster: LocalCluster) -> set[str]:
    """What the replicas say that they run."""
    return {health.version for health in (await cluster.healths()).values() if health is not None}
