"""Each client with several endpoints, without a database: the active is frozen, and the next one is killed."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from replica.local.cluster import ClusterSettings, LocalCluster
from replica.local.replica import ReplicaProcess
from tests.clients.programs import Program, running
from tests.clients.verdict import check_exactly_once

COUNT = 400
FREEZE_AFTER = 40  # lines
WAYS = {"call", "batch", "stream", "completion"}
UNDER_WAY_S = 0.5  # lines that come so soon after the freeze were on their way
TAKEN_OVER_WITHIN_S = 8.0  # usually 2; a client that does not look around waits for 10 to 40

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster() -> AsyncIterator[LocalCluster]:
    """A cluster of profile embedded that all clients use, one after the other; HAProxy is there for who names it."""
    folder = Path(tempfile.mkdtemp(prefix="notary-several-"))
    folder.chmod(0o755)
    further = {"api_workers": 1, "election": {"hold_down_s": 0.0}}
    settings = ClusterSettings(
        folder=folder / "cluster", parties=1, log="raft", embedded=True, haproxy=True, further=further
    )
    async with LocalCluster(settings) as cluster:
        for replica in cluster.replicas.values():
            replica.restart_pause_s = 0.5
        yield cluster
    shutil.rmtree(folder, ignore_errors=True)


def connection_string(cluster: LocalCluster, *, balancer: bool) -> str:
    """The replicas' own addresses; the balancer's before them."""
    hosts = [f"{one.host}:{one.api_port}" for one in cluster.config.replicas]
    first = [cluster.endpoint.removeprefix("http://")] if balancer else []
    return "http://" + ",".join(first + hosts)


@pytest.mark.parametrize(
    "balancer",
    [pytest.param(False, id="replicas"), pytest.param(True, id="haproxy-first", marks=pytest.mark.thorough)],
)
async def test_a_frozen_and_a_killed_active_cost_seconds(cluster: LocalCluster, language: str, balancer: bool) -> None:
    """Goal: no client loses or doubles a request, or waits long, when the active is frozen, and when it is killed.

    Method: both under load, by calls, batches, a stream and a feed. With HAProxy's address first it is the same.
    """
    await cluster.wait_until_ready(list(cluster.replicas))
    string = connection_string(cluster, balancer=balancer)
    key_file = cluster.folder / "parties" / "bank-1.key"
    words = (string, cluster.notary_key.hex(), cluster.parties[0].name, str(key_file), str(COUNT))
    async with running(language, "failover", *words) as program:
        waited_s = await across_faults(cluster, program)
    print(f"{language} {'haproxy-first' if balancer else 'replicas'}: next answer after", waited_s)
    check_exactly_once(program, COUNT, cluster.notary_key)
    assert waited_s.keys() >= WAYS
    assert max(waited_s.values()) < TAKEN_OVER_WITHIN_S, waited_s


async def across_faults(cluster: LocalCluster, program: Program) -> dict[str, float]:
    """Freeze the active, kill the next one; the seconds from the freeze to the next answer, by each way to ask."""
    clock_s = asyncio.get_running_loop().time
    waited_s: dict[str, float] = {}
    frozen: ReplicaProcess | None = None
    frozen_at_s = 0.0
    try:
        async for said in program.documents():
            after_s = clock_s() - frozen_at_s
            if frozen_at_s == 0.0 and len(program.said) >= FREEZE_AFTER:
                frozen = await cluster.wait_for_active()
                frozen.freeze_group()
                frozen_at_s = clock_s()
            elif frozen is not None and after_s > UNDER_WAY_S:
                waited_s.setdefault(said.get("way", said["kind"]), round(after_s, 2))
                if waited_s.keys() >= WAYS:
                    successor = await cluster.wait_for_active(other_than=frozen.name)
                    frozen.thaw()
                    frozen = None
                    successor.kill_group()
    finally:
        if frozen is not None:
            frozen.thaw()
    return waited_s
