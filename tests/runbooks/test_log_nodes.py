"""Runbooks of a request log on log nodes of our own, and what such a cluster stands. See test_runbooks."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from replica.local.cluster import ClusterSettings
from replica.log.open import open_log_admin
from tests.runbooks.conftest import staged, under_load
from tests.runbooks.stage import Stage
from tests.waiting import eventually

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(1_200),
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),
]
PAGE = "log-node-loss"


async def is_silent(stage: Stage, name: str) -> bool:
    admin = open_log_admin(stage.cluster.config.log.settings)
    try:
        return [node.partition(".")[0] for node in (await admin.survey()).silent] == [name]
    finally:
        await admin.close()


async def test_a_log_node_is_lost(folder: Path) -> None:
    """Goal: no answer is lost with a node, with its disk, or with the active's machine. Method: under load, end
    the node beside a passive, then lose its disk, then kill the active with its node; play the page each time."""
    async with staged(ClusterSettings(folder=folder / "nodes", log="raft")) as stage:
        cluster = stage.cluster
        async with under_load(stage, "log-node"):
            passive = (await cluster.passives())[0].name
            await cluster.log_nodes[passive].stop()
            await eventually(lambda: is_silent(stage, passive))
            await stage.play(PAGE, "Checks")
            await stage.play(PAGE, "Steps", "The disk is there", NODE=passive)
            await stage.play(PAGE, "Verification")
            await cluster.log_nodes[passive].stop()
            shutil.rmtree(cluster.folder / "log" / passive)
            await stage.play(PAGE, "Steps", "The disk is lost", NODE=passive)
            await stage.play(PAGE, "Verification")
            active = await cluster.wait_for_active()
            cluster.kill(active.name)
            await cluster.wait_for_active(other_than=active.name)
            await stage.play(PAGE, "Verification")
            await asyncio.sleep(2.0)
    stage.assert_all_played(PAGE)
