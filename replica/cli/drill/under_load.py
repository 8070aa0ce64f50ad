"""Strikes a cluster while clients submit, and asks afterwards for all that was notarised meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic_ns, time_ns

from ledger_api.client import RetryPolicy
from replica.checker.history import HistoryWriter
from replica.cli.common import say
from replica.cli.demo.kill import BEFORE_S, KillResult, Load, outage
from replica.cli.drill.report import Failure, find_lost
from replica.local.cluster import LocalCluster
from replica.local.process import ServerFailed, until
from replica.local.recording import RecordingClient
from replica.notary.secret_files import open_not_for_others

SETTLES_S = 3.0  # an outage has begun by then: sessions that end are noticed at once
SERVES_AGAIN_MAX_S = 180.0
PATIENCE = RetryPolicy(deadline_s=SERVES_AGAIN_MAX_S)

Strike = Callable[[LocalCluster], Awaitable[None]]


async def measure(cluster: LocalCluster, failure: str, what: str, strike: Strike) -> Failure:
    """What a failure costs that the cluster survives by itself. Raises ServerFailed when it does not."""
    async with submitting(cluster, failure, PATIENCE) as load:
        say("drill", f"{failure}: {what}")
        struck_ns = monotonic_ns()
        await strike(cluster)
        settled_ns = struck_ns + round(SETTLES_S * 1e9)

        async def serves() -> bool:
            return bool(load.success_ns) and load.success_ns[-1] > settled_ns

        try:
            async with asyncio.timeout(SERVES_AGAIN_MAX_S):
                await until(serves)
        except TimeoutError:
            raise ServerFailed(f"{failure}: nothing is notarised {SERVES_AGAIN_MAX_S:g} s after it") from None
    async with opened_client(cluster, failure, PATIENCE) as client:
        lost = await find_lost(client, load.acknowledged)
    _, rto_s = outage(load.success_ns, struck_ns)
    say("drill", f"{failure}: served after {rto_s:.1f} s; {len(lost)} of {len(load.acknowledged):,} answers are lost")
    return Failure(
        failure=failure,
        what=what,
        acknowledged=len(load.acknowledged),
        lost=len(lost),
        lost_though_kept=len(lost),
        rto_s=rto_s,
    )


@asynccontextmanager
async def submitting(cluster: LocalCluster, name: str, policy: RetryPolicy) -> AsyncIterator[Load]:
    """Clients that submit until the end of this, and their answers."""
    async with opened_client(cluster, name, policy) as client:
        load = Load(client, cluster.parties, KillResult(name))
        running = asyncio.create_task(load.run())
        try:
            await asyncio.sleep(BEFORE_S)
            yield load
        finally:
            load.stop()
            await running


@asynccontextmanager
async def opened_client(cluster: LocalCluster, name: str, policy: RetryPolicy) -> AsyncIterator[RecordingClient]:
    """A client whose questions and answers go to the cluster's history."""
    history: Path = cluster.folder / "history.jsonl"
    with open_not_for_others(history, "ab") as stream:
        process = f"drill-{name}-{time_ns()}"
        async with RecordingClient(cluster.endpoint, HistoryWriter(stream), process, policy) as client:
            yield client
