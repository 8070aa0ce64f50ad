"""The runbook of replicas that all serve. See test_runbooks."""

from __future__ import annotations

from pathlib import Path

import pytest

from replica.local.cluster import ClusterSettings
from tests.runbooks.conftest import paused, staged, under_load
from tests.waiting import eventually

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="session"),
]


async def test_workers(folder: Path, request: pytest.FixtureRequest) -> None:
    """Goal: a replica that hangs serves again, and a lock that a pause kept from everybody is taken. Method: play the
    page under load through the endpoint; freeze one that does not hold the lock, then stop the holder in a pause."""
    log = request.config.getoption("--log-kind")
    settings = ClusterSettings(folder=folder / "workers", log=log, further={"serving": "all"})
    async with staged(settings) as stage:
        cluster = stage.cluster

        async def nobody_leads() -> bool:
            return await cluster.active() is None

        async with under_load(stage, "workers") as load:
            await stage.play("workers", "Verification")
            hung = (await cluster.passives())[0]
            hung.freeze_group()
            shown = await stage.play("workers", "Checks")
            assert f'"{hung.name}": "does not answer"' in shown
            await stage.play("workers", "Steps", "A replica does not serve", R=hung.name)
            await stage.play("workers", "Verification")
            holder = await cluster.wait_for_active()
            async with cluster.config.ledgers().board("test") as board:
                await board.pause("a test")
            await eventually(lambda: paused(cluster), timeout_s=20.0)
            await holder.stop()
            await eventually(nobody_leads, timeout_s=20.0)
            before = len(load.successes_ns())

            async def answers_come() -> bool:
                return len(load.successes_ns()) > before + 50

            await eventually(answers_come, timeout_s=20.0)
            assert await cluster.active() is None, "answers came although nobody held the lock"
            await stage.play("workers", "Steps", "Nobody holds the lock")
            await cluster.wait_for_active(timeout_s=30.0)
            holder.start()
            await stage.play("workers", "Verification")
    stage.assert_all_played("workers")
