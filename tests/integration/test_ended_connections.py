"""Connections that the database ends: each is noticed and opened anew while nobody asks, so no caller finds out."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest
import pytest_asyncio
from psycopg.conninfo import conninfo_to_dict

from ledger_api.client import RetryPolicy
from ledger_api.client.client import NotaryClient
from replica.local.cluster import ClusterSettings, LocalCluster
from replica.notary.answers import Notarised
from tests.ends import guarded
from tests.waiting import eventually

pytestmark = [pytest.mark.thorough, pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]

ONCE = RetryPolicy(deadline_s=0.0, attempt_max_s=10.0)  # what is not answered at once is seen
# Of a replica: the log's writer, reader and questions; bulletin; with serving = "all" its numbers; each passive's look
# at the lock. Not the holder's lock session, whose end is the end of its lead, nor what is opened for one question.
QUESTION_MAX_S = 0.5  # a connection for one question, as after a reopening, is closed by then
SESSIONS = """
    SELECT pid, application_name FROM pg_stat_activity a
    WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
      AND application_name NOT IN ('notary-feed', '')
      AND NOT EXISTS (SELECT FROM pg_locks l WHERE l.pid = a.pid AND l.locktype = 'advisory' AND l.granted)
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["one", "all"])
async def cluster(servers_folder: Path, request: pytest.FixtureRequest) -> AsyncIterator[LocalCluster]:
    serving: str = request.param
    settings = ClusterSettings(
        folder=servers_folder / f"ended-{serving}", replicas=2, parties=1, log="postgres", further={"serving": serving}
    )
    async with guarded(LocalCluster(settings)) as running:
        yield running


def sessions(cluster: LocalCluster, *, end: bool = False) -> dict[int, str]:
    """The sessions by their process, with their names; `end` ends them."""
    with psycopg.connect(
        cluster.postgres.dsn(conninfo_to_dict(cluster.conninfo)["dbname"]), autocommit=True
    ) as connection:
        found = dict(connection.execute(SESSIONS).fetchall())
        if end:
            connection.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s) pid", (list(found),))
    return found


async def lasting(cluster: LocalCluster) -> Counter[str]:
    """How many there are of each kind while nothing happens. While a lead changes, an old active's last ones are there
    for longer than a question, and nobody opens those anew."""
    found = Counter[str]()

    async def settled() -> bool:
        nonlocal found
        before = sessions(cluster)
        await asyncio.sleep(QUESTION_MAX_S)
        found = _kinds(before)
        return await well(cluster) and sessions(cluster) == before

    await eventually(settled)
    assert found.total() >= 8
    return found


async def ended_and_back(cluster: LocalCluster, before: Counter[str]) -> None:
    """End them all, and wait until there are as many new ones of each kind as there were `before`."""
    ended = sessions(cluster, end=True)

    async def back() -> bool:
        now = sessions(cluster)
        return not ended.keys() & now.keys() and not before - _kinds(now)

    try:
        await eventually(back)
    except TimeoutError:
        now = sessions(cluster)
        missing, kept = before - _kinds(now), ended.keys() & now.keys()
        raise AssertionError(f"not opened anew: {missing}; not ended: {kept}; there: {now}") from None


def _kinds(found: dict[int, str]) -> Counter[str]:
    """Whichever replica's: the active that owes an answer while its writer ends gives the lead up."""
    return Counter(re.sub(r"^r\d+", "replica", name) for name in found.values())


async def epochs_of(cluster: LocalCluster) -> set[int]:
    return {health.epoch for health in (await cluster.healths()).values() if health is not None}


async def well(cluster: LocalCluster) -> bool:
    found = (await cluster.healths()).values()
    return all(health is not None and health.reaches_log and health.ready for health in found)


async def test_what_an_idle_replica_has_lost_no_caller_finds_out(cluster: LocalCluster) -> None:
    """Goal: the next submission is answered at once, under the same activation. Method: end every session of the idle
    replicas, three times; submit without a retry."""
    async with NotaryClient(cluster.endpoint, ONCE) as client:
        assert isinstance(await client.submit(cluster.parties[0].sign()), Notarised)
        await eventually(lambda: well(cluster))
        before, sessions_before = await epochs_of(cluster), await lasting(cluster)
        for _ in range(3):
            await ended_and_back(cluster, sessions_before)
            await eventually(lambda: well(cluster))
            answer = await client.submit(cluster.parties[0].sign())
            assert isinstance(answer, Notarised), answer
        assert await epochs_of(cluster) == before


async def test_what_a_busy_replica_has_lost_it_opens_anew(cluster: LocalCluster) -> None:
    """Goal: service goes on. Method: submit all the time, with retries, while all sessions are ended."""
    stopping = asyncio.Event()

    async def caller(client: NotaryClient) -> int:
        count = 0
        while not stopping.is_set():
            assert isinstance(await client.submit(cluster.parties[0].sign()), Notarised)
            count += 1
        return count

    before = await lasting(cluster)
    async with NotaryClient(cluster.endpoint) as client:
        callers = [asyncio.create_task(caller(client)) for _ in range(4)]
        for _ in range(2):
            await ended_and_back(cluster, before)
        stopping.set()
        assert min(await asyncio.gather(*callers)) > 0
    await eventually(lambda: well(cluster))
