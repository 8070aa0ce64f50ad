"""A made-up next release, today's, and the next again, one replica at a time, under load; then a raise."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from replica.active.signer import create_key
from replica.local.cluster import ClusterSettings, LocalCluster
from replica.local.participant import DATABASE, OWNER, ParticipantFiles
from replica.local.process import until
from tests.next_version.release import NEXT as NEXT_FORMATS
from tests.runbooks.conftest import all_well, staged, under_load
from tests.runbooks.releases import NEXT, build_wheel, install, make_environment, version_of
from tests.runbooks.stage import Stage

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(1_200),
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),
]

IN_FORCE_MAX_S = 120.0
BEFORE = "+before"  # what the version of the release before ends in: these files, until there was one
# `python -m` would find this clone's packages in the working directory, before any release that is installed.
ONLY_INSTALLED = {"PYTHONPATH": "", "PYTHONSAFEPATH": "1"}


async def test_rolling_upgrade(folder: Path) -> None:
    """Goal: no answer is lost or changed between releases, nor by a raise. Method: the next release, play back to
    today's, and to the next again; raise the made-up format once all know it, not before; audit all."""
    today, following = build_wheel(folder / "today", BEFORE), build_wheel(folder / "next", NEXT)
    officer = create_key(folder / "anna.key", "ed25519")
    (folder / "operators.toml").write_text(f'[[operators]]\nname = "anna"\npublic_key = "{officer.hex()}"\n')
    further = {"operators": {"key_file": str(folder / "anna.key"), "keys_file": str(folder / "operators.toml")}}
    settings = ClusterSettings(folder=folder / "upgrade", proxy_ports=False, further=further)
    checker = make_environment(folder / "checker")
    install(checker, following)
    async with staged(settings) as stage:
        cluster = stage.cluster
        prefixes, variables = await on_release(stage, following, folder / "machines")
        assert await versions(cluster) == {version_of(following)}
        async with under_load(stage, "rolling-upgrade", str(python_of(checker))) as load:
            owner = ("--owner", variables["OWNER_CONNINFO"])
            for wheel, code_of_raise in ((today, 2), (following, 0)):
                await change_all(stage, prefixes, variables | {"WHEEL": str(wheel), "VERSION": version_of(wheel)})
                assert await versions(cluster) == {version_of(wheel)}
                code, printed = await notary_of(checker, cluster, "format", "raise", *owner)
                assert (code, "could not read it any more" in printed) == (code_of_raise, code_of_raise == 2), printed
            assert b"TIME_WINDOW_CLOSED" not in load.history.read_bytes(), "a raise alone changes nothing"
            code, printed = await notary_of(checker, cluster, "switchover")
            assert code == 0, printed
            await within(lambda: b"TIME_WINDOW_CLOSED" in load.history.read_bytes())
            await stops_on(stage, today, prefixes)
            healths = (await cluster.healths()).values()
            assert {health.rules_in_force for health in healths if health} == {NEXT_FORMATS.rules}
    stage.assert_all_played("rolling-upgrade")


async def stops_on(stage: Stage, wheel: Path, prefixes: dict[str, Path]) -> None:
    """A passive that goes back across the raise stops, and is well again on the release that it had."""
    replica = (await stage.cluster.passives())[0]
    on_today = make_environment(stage.cluster.folder / "back")
    install(on_today, wheel)
    for prefix in (on_today, prefixes[replica.name]):
        await replica.stop()
        replica.install(python_of(prefix), stage.cluster.config_path, ONLY_INSTALLED)
        replica.start()
        if prefix is on_today:
            await within(lambda: "FORMAT_UNKNOWN" in replica.log_tail())
    await all_well(stage)


async def within(holds: Callable[[], bool]) -> None:
    """Return once it holds. Raises TimeoutError."""

    async def probe() -> bool:
        return holds()

    async with asyncio.timeout(IN_FORCE_MAX_S):
        await until(probe)


async def notary_of(prefix: Path, cluster: LocalCluster, *words: str) -> tuple[int | None, str]:
    """A command of a release: exit code and what it printed."""
    argv = [str(python_of(prefix)), "-m", "replica.cli", *words, "--config", str(cluster.config_path)]
    process = await asyncio.create_subprocess_exec(
        *argv, env=os.environ | ONLY_INSTALLED, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    printed, _ = await process.communicate()
    return process.returncode, " ".join(printed.decode().split())


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
