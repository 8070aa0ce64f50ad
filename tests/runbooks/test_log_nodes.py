"""Runbooks of a request log on log nodes of our own, and what such a cluster stands. See test_runbooks."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import cast

import pytest

from replica.local.cluster import ClusterSettings
from replica.log.open import open_log_admin
from replica.log.raft.log import RaftLog
from replica.log.raft.log_settings import RaftLogSettings
from tests.bench.usage import folder_bytes
from tests.runbooks.conftest import staged, under_load
from tests.runbooks.stage import Stage
from tests.small_disk import fill, small_disk
from tests.waiting import eventually

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(1_200),
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),
]
PAGE = "log-node-loss"
FORMER = "r0.00000000"  # the folder of a former id


async def nobody_is_silent(stage: Stage) -> bool:
    return await silent(stage) == []


async def is_silent(stage: Stage, name: str) -> bool:
    return await silent(stage) == [name]


async def silent(stage: Stage) -> list[str]:
    admin = open_log_admin(stage.cluster.config.log.settings)
    try:
        return [node.partition(".")[0] for node in (await admin.survey()).silent]
    finally:
        await admin.close()


async def has_ended(stage: Stage, name: str) -> bool:
    return not stage.cluster.log_nodes[name].running


async def two_are_gone_of_which_one_is_full(stage: Stage) -> None:
    """A passive's node on a disk without room ends when it must note a vote; the leader's death makes it vote."""
    nodes, folder = stage.cluster.log_nodes, stage.cluster.folder / "log"
    log = RaftLog(cast(RaftLogSettings, stage.cluster.config.log.settings))
    leader = await log.leader()
    await log.close()
    full = next(replica.name for replica in await stage.cluster.passives() if replica.name != leader)
    await nodes[full].stop()
    aside = (folder / full).rename(folder / f"{full}.aside")
    with small_disk(folder / full, folder_bytes(aside) // 2**20 + 64) as volume:
        shutil.copytree(aside, volume, dirs_exist_ok=True)
        (volume / FORMER).mkdir()
        nodes[full].start()
        await eventually(lambda: nobody_is_silent(stage))
        fill(volume / FORMER / "00000000000000000001.segment")
        nodes[leader].kill_group()
        await eventually(lambda: has_ended(stage, full))
        await stage.play(PAGE, "Checks")
        await stage.play(PAGE, "Steps", "Two of three nodes are gone", NODE=leader)
        await stage.play(PAGE, "Steps", "The disk is full", NODE=full, LOG_DATA=str(folder), FORMER=FORMER)
        await stage.play(PAGE, "Verification")
        await nodes[full].stop()
        shutil.rmtree(aside)
        shutil.copytree(volume, aside)
    shutil.rmtree(folder / full)
    aside.rename(folder / full)
    nodes[full].start()
    await stage.play(PAGE, "Verification")


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
            await two_are_gone_of_which_one_is_full(stage)
            await asyncio.sleep(2.0)
    stage.assert_all_played(PAGE)
