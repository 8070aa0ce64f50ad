"""`notary watch` over two real replicas under load: killed, frozen, ended, misconfigured; the watch itself killed.

CI has a short form: one kill, in test_cluster.py.
"""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from replica.local.cluster import ClusterSettings, LocalCluster
from tests.ends import guarded
from tests.faults.audit import audit
from tests.faults.load import ClientLoad, client_load
from tests.faults.under_load import end_of_log
from tests.log_kind import log_of
from tests.promises import promised
from tests.waiting import eventually
from tests.watched import RunningWatch, watched

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

NAMES = ("r1", "r2")
GONE_MAX_S = 15.0
# A frozen replica is stopped after five checks of a second, and killed `stop_max_s` later.
HURTS: list[tuple[Callable[[int, int], None], signal.Signals]] = [
    (os.kill, signal.SIGTERM),
    (os.kill, signal.SIGKILL),
    (os.killpg, signal.SIGKILL),
    (os.killpg, signal.SIGSTOP),
]
WATCH = {"restart_pause_s": 0.5, "stop_max_s": 3.0}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(servers_folder: Path, request: pytest.FixtureRequest) -> AsyncIterator[LocalCluster]:
    """Two replicas, and no other that could take over."""
    settings = ClusterSettings(
        folder=servers_folder / "watched",
        replicas=len(NAMES),
        api_workers=1,
        parties=2,
        log=log_of(request.config),
        further={"watch": WATCH},
    )
    async with guarded(LocalCluster(settings)) as cluster:
        yield cluster


@asynccontextmanager
async def supervised(cluster: LocalCluster, name: str) -> AsyncIterator[tuple[RunningWatch, ClientLoad]]:
    """A watch over both replicas, and clients; afterwards every answer is judged. Raises Violation."""
    watch = RunningWatch(cluster, *NAMES)
    first_offset = await end_of_log(cluster)
    load = client_load(cluster, name, singles=8, batches=1)
    async with watched(cluster, watch):
        load.start()
        try:
            await load.begun()
            yield watch, load
            await served_again(load)
        finally:
            await load.stop()
        summary = await audit(cluster, [load.history], first_offset)
        assert summary["answers"]["NOTARISED"] > 50
        promised(load.given_up() == 0, "submissions without a final answer")


async def served_again(load: ClientLoad) -> None:
    """Return once clients have a success that is newer than this moment."""
    before = len(load.successes_ns())

    async def more() -> bool:
        return len(load.successes_ns()) > before

    await eventually(more, 30.0)


async def gone(pid: int) -> None:
    """Return once a process has ended."""

    async def ended() -> bool:
        return not Path(f"/proc/{pid}").exists()

    await eventually(ended, GONE_MAX_S)


async def active_and_other(cluster: LocalCluster) -> tuple[str, str]:
    """Who leads, and who could take over."""
    await cluster.wait_until_ready(NAMES)
    active = (await cluster.wait_for_active()).name
    (other,) = (name for name in NAMES if name != active)
    return active, other


async def test_what_ends_or_hangs_comes_back_while_its_peer_serves(cluster: LocalCluster) -> None:
    """Goal: whatever becomes of one, the pair serves and is a pair again. Method: SIGTERM and SIGKILL of the
    core, SIGKILL and SIGSTOP of the process group, at the active each time; audit."""
    async with supervised(cluster, "hurt") as (watch, load):
        for hurt, number in HURTS:
            active, other = await active_and_other(cluster)
            fallen, peer = watch.core(active), watch.core(other)
            hurt(fallen, number)
            assert (await cluster.wait_for_active(other_than=active)).name == other
            await served_again(load)
            await watch.started_again(active, fallen)
            await gone(fallen)
            assert watch.core(other) == peer
        assert f"{active}  failed 5 checks in a row; stops" in watch.said()
        assert f"{active}  has not ended 3 s after it was stopped; it is killed" in watch.said()


async def test_a_replica_with_a_broken_key_is_left_alone_until_the_watch_is_started_again(
    cluster: LocalCluster,
) -> None:
    """Goal: no crash loop where a person is needed. Method: the notary's key made unreadable while both run, the
    passive killed: exit code 2; the active serves on; the key mended, the watch started again: both run; audit."""
    async with supervised(cluster, "broken") as (watch, load):
        active, other = await active_and_other(cluster)
        serving, fallen = watch.core(active), watch.core(other)
        with broken(cluster.folder / "notary.key"):
            os.kill(fallen, signal.SIGKILL)

            async def left_alone() -> bool:
                return f"{other}  a person is needed" in watch.said()

            await eventually(left_alone, 30.0)
            await served_again(load)
            assert watch.core(active) == serving
        await watch.stop()
        watch.start()
        await cluster.wait_until_ready(NAMES)
        await served_again(load)


@contextmanager
def broken(key: Path) -> Iterator[None]:
    """While the block runs, a key file holds something else."""
    good = key.read_bytes()
    key.write_bytes(b"not a key\n")
    try:
        yield
    finally:
        key.write_bytes(good)


async def test_no_replica_outlives_the_watch_and_the_next_watch_starts_them(cluster: LocalCluster) -> None:
    """Goal: nothing runs that nobody watches. Method: SIGKILL of the watch: the kernel's death signal ends both
    replicas in order; another watch at once, while they still end; audit."""
    async with supervised(cluster, "unwatched") as (watch, load):
        for pause in (True, False):
            await active_and_other(cluster)
            cores = [watch.core(name) for name in NAMES]
            await watch.kill()
            if pause:
                for pid in cores:
                    await gone(pid)
            watch.start()
            for name, former in zip(NAMES, cores, strict=True):
                await watch.started_again(name, former)
            await served_again(load)
        assert "a person is needed" not in watch.said()
