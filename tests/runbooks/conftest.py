"""Clusters that runbooks are played on: a small one for those that leave it as it was, larger ones where needed."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from replica.local.cluster import ClusterSettings, LocalCluster, remove_cluster
from replica.log.open import open_log
from tests.faults.audit import audit
from tests.faults.load import ClientLoad, client_load
from tests.faults.scenarios import wait_for_return
from tests.runbooks.stage import Stage

BEGIN_MAX_S = 120.0  # until a client has its first success, on a machine that does much else
PAUSE_MS = 50  # of the client between an answer and its next call: what is played is the page, not the load


@pytest.fixture(scope="session")
def folder() -> Iterator[Path]:
    """A short path that other accounts may enter."""
    parent = Path(tempfile.mkdtemp(prefix="notary-runbooks-"))
    parent.chmod(0o755)
    yield parent
    shutil.rmtree(parent, ignore_errors=True)


@asynccontextmanager
async def staged(settings: ClusterSettings) -> AsyncIterator[Stage]:
    """A cluster with a stage on it, deleted afterwards."""
    async with LocalCluster(settings) as cluster, Stage(cluster, settings.folder / "stage") as stage:
        for replica in cluster.replicas.values():
            replica.restart_pause_s = 0.5
        yield stage
    await remove_cluster(settings.folder)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def stage(folder: Path, request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    """Three replicas, one broker or none, one database server: for runbooks that leave them well."""
    async with staged(ClusterSettings(folder=folder / "small", log=request.config.getoption("--log-kind"))) as small:
        yield small


@pytest_asyncio.fixture(loop_scope="session")
async def large(folder: Path) -> AsyncIterator[Stage]:
    """Three brokers, a primary and a synchronous standby, for one runbook: nobody else lives with what it leaves."""
    settings = ClusterSettings(folder=folder / "large", brokers=3, database_standby=True)
    async with staged(settings) as reference:
        yield reference


async def all_well(stage: Stage) -> None:
    """Return once every replica is active, or ready to take over. Raises AssertionError with what they say."""
    try:
        await wait_for_return(stage.cluster)
    except TimeoutError:
        found = await stage.cluster.healths()
        ill = [name for name, health in found.items() if health is None or not health.ready]
        logs = "\n".join(f"--- {name}\n{stage.cluster.replicas[name].log_tail()}" for name in ill)
        raise AssertionError(f"{found}\n{logs}") from None


async def paused(cluster: LocalCluster) -> bool:
    """Whether every replica knows that fail-over is paused."""
    return all(health is not None and health.failover_paused for health in (await cluster.healths()).values())


@asynccontextmanager
async def under_load(stage: Stage, name: str, checker: str = sys.executable) -> AsyncIterator[ClientLoad]:
    """A client that submits all the time; then every answer is checked against the log, by `checker`'s release."""
    cluster = stage.cluster
    await all_well(stage)
    log = open_log(cluster.config.log.settings)
    first_offset = await log.end_offset()
    await log.close()
    load = client_load(cluster, name, singles=2, batches=1, pause_ms=PAUSE_MS)
    load.start()
    try:
        async with asyncio.timeout(BEGIN_MAX_S):
            while not load.successes_ns():
                await asyncio.sleep(0.1)
        yield load
    finally:
        await load.stop()
    summary = await audit(cluster, [load.history], first_offset, python=checker)
    assert summary["answers"]["NOTARISED"] > 10, "a run without load proves nothing"
