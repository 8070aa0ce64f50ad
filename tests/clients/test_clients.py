"""Each client against a real cluster, whose active replica is killed meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from ledger_api.client import NotaryClient
from replica.local.cluster import ClusterSettings, LocalCluster
from tests.clients.programs import command, running, with_node
from tests.clients.verdict import check_exactly_once
from tests.closing import ended

COUNT = 400
KILL_AFTER = 60  # successes
EARLY = 40
REFUSED_MAX_S = 60.0
PUBLISHED_MAX_S = 60.0  # for a few requests, and their completions

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster() -> AsyncIterator[LocalCluster]:
    """A cluster that all clients use, one after the other."""
    folder = Path(tempfile.mkdtemp(prefix="notary-clients-"))
    folder.chmod(0o755)  # Postgres may run as an account of its own, which pytest's own folders keep out
    settings = ClusterSettings(folder=folder / "cluster", parties=1, further={"election": {"hold_down_s": 0.0}})
    async with LocalCluster(settings) as cluster:
        for replica in cluster.replicas.values():
            replica.restart_pause_s = 0.5
        yield cluster
    shutil.rmtree(folder, ignore_errors=True)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def log_nodes() -> AsyncIterator[LocalCluster]:
    """The same with the log on log nodes."""
    folder = Path(tempfile.mkdtemp(prefix="notary-clients-"))
    folder.chmod(0o755)
    async with LocalCluster(ClusterSettings(folder=folder / "nodes", parties=1, log="raft")) as cluster:
        yield cluster
    shutil.rmtree(folder, ignore_errors=True)


def _words(cluster: LocalCluster) -> tuple[str, ...]:
    key_file: Path = cluster.folder / "parties" / "bank-1.key"
    return cluster.endpoint, cluster.notary_key.hex(), cluster.parties[0].name, str(key_file)


async def test_the_readmes_example_notarises(cluster: LocalCluster, language: str) -> None:
    """Goal: the README works as printed. Method: run its example against the cluster."""
    async with running(language, "notarise", *_words(cluster)) as program:
        said = [line async for line in program.lines()]
    assert said[0].startswith("notarised at offset ")
    assert len(said) == 2


async def test_every_request_is_a_success_exactly_once_across_a_fail_over(cluster: LocalCluster, language: str) -> None:
    """Goal: no client loses or doubles a request when the active dies. Method: kill it under load.

    Calls, batches and a stream at once; each receipt is verified by the client, and here; completions are read.
    """
    await cluster.wait_until_ready(list(cluster.replicas))
    active = await cluster.wait_for_active()
    async with running(language, "failover", *_words(cluster), str(COUNT)) as program:
        async for _ in program.documents():
            if len(program.said) == KILL_AFTER:
                active.kill_group()
    successor = await cluster.wait_for_active()
    assert successor.name != active.name
    check_exactly_once(program, COUNT, cluster.notary_key)


async def read_on(cluster: LocalCluster, language: str, count: int, *kept: str) -> list[dict[str, Any]]:
    """What a reader of completions says that begins after a bookmark, or at the ledger's beginning."""
    async with running(language, "resume", *_words(cluster), str(count), *kept) as program:
        async for _ in program.documents():
            pass
    return program.said


async def publish(cluster: LocalCluster, count: int) -> list[str]:
    """Completions of the reader's user; all transactions of that user, once those are published."""
    tx_ids = [os.urandom(32) for _ in range(count)]
    async with NotaryClient(cluster.endpoint) as client, asyncio.timeout(PUBLISHED_MAX_S):
        for tx_id in tx_ids:
            submission = cluster.parties[0].sign(tx_id, [f"{os.urandom(32).hex()}:0"], user_id="resume")
            await client.notarise(submission, cluster.notary_key)
        while True:
            whole = [json.loads(one)["tx_id"] async for one in client.published(user_id="resume")]
            if whole and whole[-1] == tx_ids[-1].hex():
                return whole
            await asyncio.sleep(0.05)


@pytest.mark.thorough
async def test_a_reader_goes_on_after_its_bookmark_and_in_the_same_ledger_only(
    cluster: LocalCluster, log_nodes: LocalCluster, language: str
) -> None:
    """Goal: nothing is read twice or left out across a fail-over, and another ledger is noticed. Method: read some,
    kill the active, go on with the bookmark that was kept; then with the same one at another cluster, which has
    something else at that offset, as after a restore."""
    await cluster.wait_until_ready(list(cluster.replicas))
    whole = await publish(cluster, 5)
    said = await read_on(cluster, language, len(whole) - 2)
    active = await cluster.wait_for_active()
    active.kill_group()
    assert (await cluster.wait_for_active(other_than=active.name)).name != active.name
    rest = await read_on(cluster, language, 2, said[-1]["bookmark"])
    assert [one["tx_id"] for one in said + rest] == whole
    async with NotaryClient(log_nodes.endpoint) as client:
        while (await client.ledger_end()).ledger_end < said[-1]["offset"]:
            await publish(log_nodes, 5)
    assert await read_on(log_nodes, language, 1, said[-1]["bookmark"]) == [{"kind": "ended", "code": "LEDGER_CHANGED"}]


@pytest.mark.thorough
@pytest.mark.parametrize("count", ["0", "-2", "none"])
async def test_a_count_that_never_ends_is_refused(language: str, count: str) -> None:
    """Goal: nobody waits for a reader that has nothing to read. Method: counts that are none; nothing is asked."""
    words = (*command(language, "resume"), "http://127.0.0.1:1", "00", "O=Nobody", "nobody.key", count)
    pipe = asyncio.subprocess.PIPE
    program = await asyncio.create_subprocess_exec(*words, stdout=pipe, stderr=pipe, env=with_node())
    try:
        async with asyncio.timeout(REFUSED_MAX_S):
            said, complained = await program.communicate()
    finally:
        await ended(program)
    told = f"COUNT is how many completions to read, 1 or more, not '{count}'\n"
    assert (program.returncode, said.decode(), complained.decode()) == (1, "", told)


@pytest.mark.thorough
async def test_an_early_acceptance_is_followed_to_its_end(language: str, log_nodes: LocalCluster) -> None:
    """Goal: a place in the log, and what became of it, in each language. Method: log nodes, one of which is ended."""
    leading = await log_nodes.wait_for_active()
    async with running(language, "early", *_words(log_nodes), str(EARLY)) as program:
        async for _ in program.documents():
            if len(program.said) == EARLY // 2:
                await log_nodes.log_nodes[leading.name].stop()
    log_nodes.log_nodes[leading.name].start()
    lost = [one for one in program.said if one["kind"].title() == "Invalid"]
    found = [one for one in program.said if one["kind"].title() == "Committed"]
    assert len(program.said) == EARLY == len(lost) + len(found)
    assert len(found) > EARLY - 3  # one at a time is under way
    assert len({one["log_offset"] for one in found}) == len({one["place"] for one in program.said}) - len(lost)
    async with NotaryClient(log_nodes.endpoint) as client:
        for one in found:
            again = await client.log_transaction(one["place"])
            assert (again.status, again.log_offset) == ("Committed", one["log_offset"])
