"""A participant without any database: a lease over log nodes, and a ledger of each replica's own. Real processes."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ledger_api.client.answers import Notarised
from replica.checker.history import HistoryWriter
from replica.local.cluster import ClusterSettings, LocalCluster, remove_cluster
from replica.local.recording import RecordingClient
from replica.notary.answers import Refused
from replica.notary.requests import state_ref
from replica.store.interface import Row
from tests.ends import guarded
from tests.integration.feed_reader import read_all
from tests.integration.test_cluster import World
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

SUBMISSIONS = 30


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path that other accounts may enter."""
    with tempfile.TemporaryDirectory(prefix="own-") as name:
        Path(name).chmod(0o755)
        yield Path(name) / "cluster"


async def printed(cluster: LocalCluster, *words: str) -> dict[str, Any]:
    """The document that a command prints; its exit code is 0."""
    argv = [sys.executable, "-m", "replica.cli", *words, "--config", str(cluster.config_path), "--json"]
    process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    text, _ = await process.communicate()
    assert process.returncode == 0, text
    found: dict[str, Any] = json.loads(text)
    return found


async def ledgers(world: World) -> list[list[Row]]:
    """What each replica has, once all of them cover what was notarised."""
    found: list[list[Row]] = []
    newest = max(world.notarised.values())

    async def covered() -> bool:
        found.clear()
        for name in world.cluster.replicas:
            with world.cluster.config.ledgers(name).export() as export:
                found.append([row for row in export.rows if row[1].log_offset <= newest])
                if export.published_offset < newest:
                    return False
        return True

    await eventually(covered)
    return found


async def double_spend(world: World) -> None:
    """The second of two requests for one state is refused."""
    state = state_ref(os.urandom(32), 0)
    first, second = (world.cluster.parties[0].sign(os.urandom(32), [state]) for _ in range(2))
    answer = await world.client.submit(first)
    assert isinstance(answer, Notarised)
    world.notarised[answer.tx_id] = answer.log_offset
    assert isinstance(await world.client.submit(second), Refused)


async def test_three_replicas_without_a_database_are_one_notary(folder: Path) -> None:
    """Goal: nothing is lost when the active is killed with its log node, hands over, or is frozen; all ledgers are
    equal, and a cluster that is started again goes on. Method: submit under each, with offences; every answer against
    the log; status, history and completions; the files of all replicas; stop everything, start, look up, submit."""
    settings = ClusterSettings(folder=folder, parties=2, log="raft", embedded=True, further={"api_workers": 1})
    history = folder.with_name("history.jsonl")
    with history.open("wb") as stream:
        async with (
            guarded(LocalCluster(settings)) as cluster,
            RecordingClient(cluster.endpoint, HistoryWriter(stream), "before") as client,
        ):
            world = World(cluster, client, history, stream)
            own = await fail_over_and_switch_over(world)
        kept = ClusterSettings(folder=folder, parties=2)
        async with (
            guarded(LocalCluster(kept)) as cluster,
            RecordingClient(cluster.endpoint, HistoryWriter(stream), "after") as client,
        ):
            assert cluster.embedded
            world = World(cluster, client, history, stream, world.notarised)
            for tx_id, log_offset in list(world.notarised.items())[-5:]:
                found = await client.look_up(tx_id)
                assert isinstance(found, Notarised)
                assert found.log_offset == log_offset
            await double_spend(world)
            await world.check()
            assert all(rows[: len(own)] == own for rows in await ledgers(world))
    assert not (folder / "postgres").exists()
    await remove_cluster(folder)


async def freeze_beyond_the_lease(world: World) -> None:
    """The active is frozen until another one serves, and goes on afterwards."""
    frozen = await world.cluster.wait_for_active()
    frozen.freeze_group()
    try:
        await world.cluster.wait_for_active(other_than=frozen.name)
        await double_spend(world)
    finally:
        frozen.thaw()
    await world.cluster.wait_until_ready(list(world.cluster.replicas))
    await double_spend(world)


async def fail_over_and_switch_over(world: World) -> list[Row]:
    """The completions after both, which all replicas have alike."""
    cluster = world.cluster
    await double_spend(world)
    killed = await cluster.wait_for_active()
    assert (await printed(cluster, "status"))["lock_owner"] == killed.name
    await world.outage_of(lambda active: cluster.kill(active.name))
    await double_spend(world)
    await cluster.wait_until_ready(list(cluster.replicas))
    active = await cluster.wait_for_active()
    await printed(cluster, "switchover")
    await cluster.wait_for_active(other_than=active.name)
    for _ in range(SUBMISSIONS):
        await world.notarise_one()
    await freeze_beyond_the_lease(world)
    await world.check()
    own = await ledgers(world)
    assert len(own) == 3
    assert own[0] == own[1] == own[2]
    assert len(own[0]) >= len(world.notarised) + 2
    epochs = (await printed(cluster, "history"))["epochs"]
    assert {killed.name, active.name} <= {one["replica"] for one in epochs}
    assert "switchover" in {one["why"] for one in epochs if one["replica"] == active.name}
    assert len(await read_all(cluster.endpoint)) >= len(own[0])
    return own[0]
