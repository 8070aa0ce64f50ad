"""The archive, the audit and a rebuilt index of a participant without any database. Real processes, real Spark."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from replica.checker.history import HistoryWriter
from replica.config.model import LEDGER
from replica.local.cluster import ClusterSettings, LocalCluster, remove_cluster
from replica.local.recording import RecordingClient
from tests.ends import guarded
from tests.integration.test_cluster import World
from tests.integration.test_embedded_profile import double_spend, ledgers
from tests.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1_500)]

READY_MAX_S = 120.0
PATIENT = {  # Spark takes all of a small machine
    "lease_s": 6.0,
    "heartbeat_s": 0.5,
    "margin_s": 0.5,
    "answer_max_s": 4.5,
    "statement_max_s": 1.0,
    "drain_max_s": 2.0,
}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path that other accounts may enter."""
    with tempfile.TemporaryDirectory(prefix="arch-") as name:
        Path(name).chmod(0o755)
        yield Path(name) / "cluster"


async def notary(cluster: LocalCluster, *words: str, code: int = 0) -> dict[str, Any]:
    """The document that a command prints; it ends with that exit code."""
    argv = [sys.executable, "-m", "replica.cli", *words, "--config", str(cluster.config_path), "--json"]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*argv, stdout=pipe, stderr=pipe)
    text, problem = await process.communicate()
    assert process.returncode == code, (text, problem)
    found: dict[str, Any] = json.loads(text)
    return found


async def some_claims(world: World) -> None:
    """Load, with offences, under three holders of the lease: one is killed, one hands over."""
    cluster = world.cluster
    for _ in range(10):
        await world.notarise_one()
    await double_spend(world)
    await world.outage_of(lambda active: cluster.kill(active.name))
    await double_spend(world)
    await cluster.wait_until_ready(list(cluster.replicas), READY_MAX_S)
    active = await cluster.wait_for_active()
    await notary(cluster, "switchover")
    await cluster.wait_for_active(other_than=active.name)
    for _ in range(10):
        await world.notarise_one()


async def test_a_log_with_claims_is_archived_audited_and_judged_again(folder: Path) -> None:
    """Goal: archive, audit and index of such a log are those that replicas make, and a shortened archive shows.
    Method: load under several holders; archive twice, verify, cut a line; audit the archive and the ledgers; make a
    stopped replica's index on Spark and take its ledger away; start it, and compare ledgers and indexes."""
    further = {"api_workers": 1, "election": PATIENT}
    settings = ClusterSettings(folder=folder, parties=2, log="raft", embedded=True, further=further)
    history = folder.with_name("history.jsonl")
    with history.open("wb") as stream:
        async with (
            guarded(LocalCluster(settings)) as cluster,
            RecordingClient(cluster.endpoint, HistoryWriter(stream), "client") as client,
        ):
            world = World(cluster, client, history, stream)
            await some_claims(world)
            await archived(cluster, max(world.notarised.values()))
            await audited(cluster, len(world.notarised))
            stopped = (await cluster.passives())[0]
            await stopped.stop()
            rebuilt = await notary(cluster, "index", "rebuild", "--name", stopped.name, "--engine", "spark")
            assert rebuilt["entries"] >= 2 * len(world.notarised)
            ledger = cluster.config.replica_dir(stopped.name) / LEDGER
            for path in ledger.parent.glob(f"{ledger.name}*"):
                path.unlink()
            stopped.start()
            await cluster.wait_until_ready(list(cluster.replicas), READY_MAX_S)
            await double_spend(world)
            own = await ledgers(world)
            assert own[0] == own[1] == own[2]
            await world.check()
            other = next(one for one in await cluster.passives() if one.name != stopped.name)
            for one in (stopped, other):
                await one.stop()
            for asked in (("--replica", other.name), ("--database",)):
                found = await notary(cluster, "index", "diff", "--name", stopped.name, *asked)
                assert found["same"]
    await remove_cluster(folder)


async def archived(cluster: LocalCluster, newest: int) -> None:
    """Archive in two runs, without Spark; verify; a manifest that lacks its last line is found by the head in the
    log, and refused by the archiver."""
    first = await notary(cluster, "archive", "run")
    second = await notary(cluster, "archive", "run")
    assert first["last"] >= newest
    assert second["last"] > first["last"]  # signs of life
    assert (await notary(cluster, "archive", "verify"))["findings"] == []
    manifest = cluster.config.archive.folder / "manifest.jsonl"
    whole = manifest.read_bytes()
    manifest.write_bytes(whole[: whole.rstrip(b"\n").rfind(b"\n") + 1])
    found = await notary(cluster, "archive", "verify", code=1)
    assert found["findings"]
    assert (await notary(cluster, "archive", "verify", "--offline"))["findings"] == []
    manifest.write_bytes(whole)


async def audited(cluster: LocalCluster, notarised: int) -> None:
    """Nothing is wrong, in the log or in any of the three ledgers; several claims are in force."""

    async def covered() -> bool:
        found = [cluster.config.ledgers(name) for name in cluster.replicas]
        ends = [(await one.status()).ledger_end for one in found]
        return min(ends) == max(ends)

    await eventually(covered)
    found = await notary(cluster, "audit", "--log", "archive")
    assert (found["clean"], found["findings"]) == (True, [])
    assert found["outcomes"]["NOTARISED"] >= notarised
    assert found["completions"] == 3 * sum(found["outcomes"].values())
    assert len({epoch for _, epoch, _ in found["epochs"]}) >= 3
