"""A participant whose log is on nodes of its own: places in the log before the commit, and after a machine is lost."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from ledger_api.client import NotaryClient
from ledger_api.client.answers import Notarised
from replica.active.log_questions import FINAL
from replica.checker.history import HistoryWriter
from replica.local.cluster import ClusterSettings, LocalCluster, remove_cluster
from replica.local.recording import RecordingClient
from replica.log.open import open_log_admin
from replica.notary.answers import AcceptedEarly
from replica.notary.requests import Submission
from tests.integration.test_cluster import World
from tests.waiting import eventually

pytestmark = pytest.mark.cluster

SUBMISSIONS = 200


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path that other accounts may enter."""
    with tempfile.TemporaryDirectory(prefix="raft-") as name:
        Path(name).chmod(0o755)
        yield Path(name) / "cluster"


@pytest.fixture
async def world(folder: Path) -> AsyncIterator[World]:
    """A cluster with a log node beside each replica."""
    async with LocalCluster(ClusterSettings(folder=folder, api_workers=1, parties=2, log="raft")) as cluster:
        path = folder / "history.jsonl"
        with path.open("wb") as history:
            async with RecordingClient(cluster.endpoint, HistoryWriter(history), "test") as client:
                yield World(cluster, client, path, history)
    await remove_cluster(folder)


async def self_contained_proof(world: World, offset: int | None, place: str) -> None:
    """`notary log prove`, verified by `notary verify` with the log's id and nothing else."""
    code, proof = await run_notary("log", "prove", str(offset), "--config", str(world.cluster.config_path))
    assert code == 0
    path = world.cluster.folder / "proof.json"
    path.write_bytes(proof)
    log_id = await open_log_admin(world.cluster.config.log.settings).topic_id()
    code, printed = await run_notary("verify", str(path), "--log-id", log_id, "--json")
    found = json.loads(printed)
    assert (code, found["valid"], found["transaction_id"]) == (0, True, place)


async def run_notary(*words: str) -> tuple[int, bytes]:
    argv = [sys.executable, "-m", "replica.cli", *words]
    process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    printed, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, printed


async def test_an_early_place_becomes_final_also_where_the_leader_is_killed(world: World) -> None:
    """Goal: early is Pending and then Committed; after a kill each place is final, and every submission notarised once.

    Method: one submission, until its place is committed and its completion published. Then many; in the middle, kill
    the active with its log node. Ask for every place; send all again, and check every answer against the log.
    """
    cluster = world.cluster
    async with NotaryClient(cluster.endpoint) as client:
        first = world.fresh()
        early = await world.client.submit_early(first)
        assert isinstance(early, AcceptedEarly)
        seen = [await client.log_transaction(early.transaction_id)]

        async def published() -> bool:
            seen.append(await client.log_transaction(early.transaction_id))
            return seen[-1].ledger_offset is not None

        await eventually(published)
        moves = list(dict.fromkeys(one.status for one in seen))
        assert moves in (
            ["Committed"],
            ["Pending", "Committed"],
            ["Unknown", "Committed"],
            ["Unknown", "Pending", "Committed"],
        )
        await self_contained_proof(world, seen[-1].log_offset, early.transaction_id)
        commit = await client.commit(view_history_since=1)
        assert int(commit.transaction_id.partition(".")[2]) >= int(early.transaction_id.partition(".")[2])
        assert commit.view_history

        active = await cluster.wait_for_active()
        submissions = [first] + [world.fresh() for _ in range(SUBMISSIONS)]
        places: dict[str, Submission] = {}

        async def submit(submission: Submission) -> None:
            answer = await world.client.submit_early(submission)
            if isinstance(answer, AcceptedEarly):
                places[answer.transaction_id] = submission

        sending = [asyncio.create_task(submit(submission)) for submission in submissions[1:]]
        await asyncio.wait(sending, return_when=asyncio.FIRST_COMPLETED)
        cluster.kill(active.name)
        await asyncio.gather(*sending)
        await cluster.wait_for_active(other_than=active.name)
        assert places

        async def final(place: str) -> bool:
            return (await client.log_transaction(place)).status in FINAL

        for place in places:
            await eventually(lambda place=place: final(place))  # type: ignore[misc]
        for submission in submissions:
            answer = await world.client.submit(submission)
            assert isinstance(answer, Notarised), answer
    await world.check()
