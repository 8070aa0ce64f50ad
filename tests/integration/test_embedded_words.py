"""Operators' words without a database: pause, fail-over, reasons, one bound of pruning. Real processes."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from replica.checker.history import HistoryWriter
from replica.local.cluster import ClusterSettings, LocalCluster
from replica.local.recording import RecordingClient
from replica.notary.errors import StoreMismatch, StoreUnavailable
from tests.ends import guarded
from tests.integration.test_cluster import World
from tests.integration.test_embedded_profile import folder, ledgers, printed  # noqa: F401  (a fixture)
from tests.waiting import eventually

pytestmark = [pytest.mark.thorough, pytest.mark.cluster, pytest.mark.timeout(900)]  # a dozen commands, each a process
DEDUPLICATION_S = 10.0
WAIT_S = 60.0  # the machine may be busy


async def code_of(cluster: LocalCluster, *words: str) -> int:
    """The exit code of a command."""
    argv = [sys.executable, "-m", "replica.cli", *words, "--config", str(cluster.config_path)]
    process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.DEVNULL)
    return await process.wait()


async def status(cluster: LocalCluster) -> dict[str, Any]:
    """What `notary status` prints, whether or not a replica is active."""
    argv = [sys.executable, "-m", "replica.cli", "status", "--config", str(cluster.config_path), "--json"]
    process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    text, _ = await process.communicate()
    found: dict[str, Any] = json.loads(text)
    return found


async def test_operators_words_hold_across_fail_overs(folder: Path) -> None:  # noqa: F811
    """Goal: each command does what it does with a database. Method: hand over; pause; kill the active with its log
    node: it leads again and nobody else did; pause still holds; stop it, force a fail-over; resume; the reasons."""
    settings = ClusterSettings(folder=folder, parties=1, log="raft", embedded=True, further={"api_workers": 1})
    history = folder.with_name("history.jsonl")
    with history.open("wb") as stream:
        async with (
            guarded(LocalCluster(settings)) as cluster,
            RecordingClient(cluster.endpoint, HistoryWriter(stream), "words") as client,
        ):
            for replica in cluster.replicas.values():
                replica.restart_pause_s = 0.5
            world = World(cluster, client, history, stream)
            before = await hand_over(world)
            keeper = await pause_and_kill(world)
            await force(world, keeper)
            epochs = (await printed(cluster, "history"))["epochs"]
            told = {(one["replica"], one["cause"]) for one in epochs if one["ended_at"] is not None}
            assert {(before, "switchover"), (keeper, "stop")} <= told
            await trail_is_whole(cluster)
            await world.check()


async def trail_is_whole(cluster: LocalCluster) -> None:
    """The log has every act that was done here, in its order, across leaders and restarts; and one by hand."""
    assert await code_of(cluster, "trail", "record", "party-change", "--reason", "bank 7 is new") == 0
    whole = await printed(cluster, "trail", "verify")
    entries: list[dict[str, Any]] = await printed(cluster, "trail", "list")  # type: ignore[assignment]
    assert (whole["whole"], whole["entries"]) == (True, len(entries))
    assert [entry["number"] for entry in entries] == list(range(1, len(entries) + 1))
    done = [(entry["act"], entry["phase"]) for entry in entries if entry["phase"] != "begun"]
    assert done == [
        ("party-import", "done"),  # as the cluster began
        ("switchover", "done"),
        ("pause", "done"),
        ("pause", "done"),
        ("switchover", "failed"),
        ("failover", "done"),
        ("resume", "done"),
        ("party-change", "recorded"),
    ]


async def hand_over(world: World) -> str:
    """Who led before."""
    cluster = world.cluster
    await cluster.wait_until_ready(list(cluster.replicas))
    before = (await cluster.wait_for_active()).name
    await printed(cluster, "switchover")
    await cluster.wait_for_active(other_than=before)
    await world.notarise_one()
    return before


async def pause_and_kill(world: World) -> str:
    """Who leads, and whom the pause is for."""
    cluster = world.cluster
    await cluster.wait_until_ready(list(cluster.replicas))
    keeper = (await cluster.wait_for_active()).name
    assert await code_of(cluster, "pause", "a test") == 0
    assert await code_of(cluster, "pause", "another reason") == 0
    assert (await status(cluster))["pause"] == (await printed(cluster, "history"))["pause"]
    assert await code_of(cluster, "switchover") == 2
    assert await code_of(cluster, "failover", "--yes") == 1
    newest = (await printed(cluster, "history"))["epochs"][0]["epoch"]
    cluster.kill(keeper)
    await asyncio.sleep(2 * cluster.config.election.lease_s)
    await cluster.wait_until_ready(list(cluster.replicas))
    assert (await cluster.wait_for_active()).name == keeper
    await world.notarise_one()
    later = [one for one in (await printed(cluster, "history"))["epochs"] if one["epoch"] > newest]
    assert {one["replica"] for one in later} == {keeper}
    found = (await status(cluster))["pause"]
    assert (found["keeper"], found["reason"]) == (keeper, "another reason")
    return keeper


async def force(world: World, keeper: str) -> None:
    """Stop the keeper; nobody leads; then another one does."""
    cluster = world.cluster
    await cluster.replicas[keeper].stop()
    await asyncio.sleep(2 * cluster.config.election.lease_s)
    assert await code_of(cluster, "status") == 1, "the pause keeps the others off"
    forced = await printed(cluster, "failover", "--yes")
    assert forced["active"] in cluster.replicas.keys() - {keeper}
    await world.notarise_one()
    cluster.replicas[keeper].start()
    await cluster.wait_until_ready(list(cluster.replicas))
    assert (await status(cluster))["pause"] is None
    assert await code_of(cluster, "resume") == 0


async def test_one_bound_of_pruning_holds_for_all_ledgers(folder: Path) -> None:  # noqa: F811
    """Goal: every replica lets the same completions go, also one whose ledger is made anew. Method: submit, wait for
    the deduplication period, prune; all ledgers; delete one while its replica is stopped; kill the active; submit."""
    further = {"api_workers": 1, "core": {"deduplication_max_s": DEDUPLICATION_S}}
    settings = ClusterSettings(folder=folder, parties=1, log="raft", embedded=True, further=further)
    with folder.with_name("history.jsonl").open("wb") as stream:
        async with (
            guarded(LocalCluster(settings)) as cluster,
            RecordingClient(cluster.endpoint, HistoryWriter(stream), "pruned") as client,
        ):
            world = World(cluster, client, folder.with_name("history.jsonl"), stream)
            await cluster.wait_until_ready(list(cluster.replicas))
            for _ in range(20):
                await world.notarise_one()
            assert await code_of(cluster, "store", "prune", "--up-to", "10000") == 2
            await asyncio.sleep(DEDUPLICATION_S)
            pruned = await printed(cluster, "store", "prune", "--up-to", "15")
            assert (pruned["pruned_to"], pruned["deleted"]) == (15, None)
            await eventually(lambda: all_pruned_to(cluster, 15), WAIT_S)
            active = await cluster.wait_for_active()
            other = next(one for one in cluster.replicas.values() if one.name != active.name)
            await other.stop()
            shutil.rmtree(cluster.config.replica_dir(other.name) / "ledger")
            other.start()
            await eventually(lambda: all_pruned_to(cluster, 15), WAIT_S)
            await world.outage_of(lambda active: cluster.kill(active.name))
            await cluster.wait_until_ready(list(cluster.replicas))
            await world.check()
            own = await ledgers(world)
            assert own[0] == own[1] == own[2]
            assert own[0][0][0] == 16


async def all_pruned_to(cluster: LocalCluster, bound: int) -> bool:
    """Whether every ledger has that bound, and no completion at it or below."""
    for name in cluster.replicas:
        try:
            with cluster.config.ledgers(name).export() as export:
                if export.pruned_to != bound or next(export.rows)[0] != bound + 1:
                    return False
        except (StoreMismatch, StoreUnavailable):
            return False
    return True
