"""Every copy of the log of a participant without a database is lost, and restored from the archive. Real processes."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from replica.checker.history import HistoryWriter
from replica.local.cluster import ClusterSettings, LocalCluster, remove_cluster
from replica.local.log_nodes import make_log_nodes
from replica.local.machine import THIS_MACHINE
from replica.local.process import ServerFailed
from replica.local.recording import RecordingClient
from replica.local.replica import ReplicaProcess
from replica.log.raft.log_settings import RaftLogSettings
from tests.ends import guarded
from tests.integration.test_cluster import World
from tests.integration.test_embedded_profile import double_spend, ledgers
from tests.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

READY_MAX_S = 60.0


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path that other accounts may enter."""
    with tempfile.TemporaryDirectory(prefix="rest-") as name:
        Path(name).chmod(0o755)
        yield Path(name) / "cluster"


async def notary(cluster: LocalCluster, *words: str) -> str:
    """What a command prints that must end well."""
    code, text = await ended(cluster, *words)
    assert code == 0, text
    return text


async def ended(cluster: LocalCluster, *words: str) -> tuple[int, str]:
    """The exit code of a command, and what it prints, errors included."""
    argv = [sys.executable, "-m", "replica.cli", *words, "--config", str(cluster.config_path)]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*argv, stdout=pipe, stderr=asyncio.subprocess.STDOUT)
    text = (await process.communicate())[0].decode()
    return process.returncode or 0, text


async def test_a_log_whose_copies_are_all_lost_is_restored(folder: Path) -> None:
    """Goal: what was archived is answered as before, at its offsets, and nothing of it is spent twice. Method: submit
    under two holders; stop; archive; remove every log node's disk; a new log, restore, adopt two of the indexes; the
    third replica refuses to start until its index is made anew; compare ledgers, and all answers with the log."""
    settings = ClusterSettings(folder=folder, parties=2, log="raft", embedded=True, further={"api_workers": 1})
    history = folder.with_name("history.jsonl")
    with history.open("wb") as stream:
        async with (
            guarded(LocalCluster(settings)) as cluster,
            RecordingClient(cluster.endpoint, HistoryWriter(stream), "client") as client,
        ):
            world = World(cluster, client, history, stream)
            await double_spend(world)
            await world.outage_of(lambda active: cluster.kill(active.name))
            await double_spend(world)
            await cluster.wait_until_ready(list(cluster.replicas), READY_MAX_S)
            before = await ledgers(world)
            for replica in cluster.replicas.values():
                await replica.stop()
            await notary(cluster, "archive", "run")
            await lose_the_log(cluster)
            await restored(cluster, folder.with_name("evidence.json"))
            assert await ledgers(world) == before
            await double_spend(world)
            await world.check()
    await remove_cluster(folder)


async def lose_the_log(cluster: LocalCluster) -> None:
    """Every log node on an empty disk. Replicas are stopped."""
    settings = cluster.config.log.settings
    assert isinstance(settings, RaftLogSettings)
    for node in cluster.log_nodes.values():
        await node.stop()
    shutil.rmtree(settings.data_dir)
    machines = dict.fromkeys(settings.addresses, THIS_MACHINE)
    cluster.log_nodes = make_log_nodes(settings, cluster.config_path, machines, print)


async def restored(cluster: LocalCluster, evidence: Path) -> None:
    """As docs/raft.md says, with one index that is not adopted."""
    for node in cluster.log_nodes.values():
        node.start()
    await eventually(partial(is_created, cluster), READY_MAX_S)
    assert "refused" not in await notary(cluster, "restore", "plan")
    await notary(cluster, "restore", "run", "--evidence", str(evidence))
    *adopted, other = cluster.replicas.values()
    names = [word for replica in adopted for word in ("--name", replica.name)]
    assert "anew" in await notary(cluster, "restore", "adopt", *names)
    await refuses_to_start(cluster, other)
    await notary(cluster, "index", "rebuild", "--name", other.name)
    for replica in cluster.replicas.values():
        replica.start()
    await cluster.wait_until_ready(list(cluster.replicas), READY_MAX_S)


async def is_created(cluster: LocalCluster) -> bool:
    """The nodes have begun a new log, once they run."""
    return (await ended(cluster, "log", "create", "--to-restore"))[0] == 0


async def refuses_to_start(cluster: LocalCluster, replica: ReplicaProcess) -> None:
    """Its index was read from the log that is gone."""
    log = cluster.config.replica_dir(replica.name) / "replica.log"
    size = log.stat().st_size

    async def refused() -> bool:
        return b"LOG_MISMATCH" in log.read_bytes()[size:]

    with suppress(ServerFailed):  # it may have ended before it was seen to run
        replica.start()
    await eventually(refused, READY_MAX_S)
    await replica.stop()
