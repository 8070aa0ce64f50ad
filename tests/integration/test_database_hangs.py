"""On a real database that hangs: what needs no database goes on, and the bound on what waits for it holds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import pytest
import pytest_asyncio

from ledger_api.client.client import NotaryClient
from ledger_api.client.retry import RetryPolicy
from ledger_api.client.signing import Deduplication
from replica.local.cluster import ClusterSettings, LocalCluster
from replica.notary.answers import Accepted, Notarised
from replica.store.postgres.status import read_status
from tests.ends import guarded

pytestmark = [pytest.mark.thorough, pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]

FROZEN_S = 1.0  # the default lease is 3 s
ONCE = RetryPolicy(deadline_s=0.0, attempt_max_s=10.0)  # what is not answered at once is seen


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(servers_folder: Path) -> AsyncIterator[LocalCluster]:
    settings = ClusterSettings(folder=servers_folder / "hangs", replicas=1, api_workers=1, parties=1, log="memory")
    async with guarded(LocalCluster(settings)) as running:
        yield running


@contextmanager
def frozen(cluster: LocalCluster) -> Iterator[None]:
    """Every process of the database server stands still while the block runs."""
    cluster.postgres.freeze()
    try:
        yield
    finally:
        cluster.postgres.thaw()


async def epochs(cluster: LocalCluster) -> list[int]:
    return [health.epoch for health in (await cluster.healths()).values() if health is not None]


async def test_a_database_that_hangs_for_less_than_the_lease_costs_no_request(cluster: LocalCluster) -> None:
    """Goal: the database is off the answer's path. Method: submit all the time, without a retry, both ways; freeze all
    of Postgres for a second; many answers are of that second, none fails, and each has its completion afterwards."""
    party, before = cluster.parties[0], await epochs(cluster)
    answered_s: list[float] = []
    ended: list[str] = []
    accepted: list[int] = []
    ledger_offsets: list[int] = []
    stopping = asyncio.Event()

    async with NotaryClient(cluster.endpoint, ONCE) as client:

        async def caller(asynchronously: bool) -> None:
            while not stopping.is_set():
                one = party.sign()
                answer = await (client.submit_async(one) if asynchronously else client.submit(one))
                answered_s.append(monotonic())
                ended.append(type(answer).__name__)
                if isinstance(answer, Accepted):
                    assert answer.log_offset is not None
                    accepted.append(answer.log_offset)
                if isinstance(answer, Notarised):
                    assert answer.ledger_offset is not None
                    ledger_offsets.append(answer.ledger_offset)

        callers = [asyncio.create_task(caller(bool(number % 2))) for number in range(8)]
        await asyncio.sleep(1.0)
        with frozen(cluster):
            from_s = monotonic() + 0.2  # an answer that was on its way does not count
            await asyncio.sleep(FROZEN_S)
            until_s = monotonic()
        await asyncio.sleep(1.0)
        stopping.set()
        await asyncio.gather(*callers)
        meanwhile = [at_s for at_s in answered_s if from_s < at_s < until_s]
        assert set(ended) == {"Notarised", "Accepted"}
        assert len(meanwhile) > 8  # every caller got more than the one that was on its way
        found = {}
        async with asyncio.timeout(30):
            async for completion in client.completions():
                found[completion.offset] = completion.log_offset
                if set(accepted) <= set(found.values()) and set(ledger_offsets) <= found.keys():
                    break
    assert len(set(found.values())) == len(found)  # one completion a record
    assert await epochs(cluster) == before


async def test_what_is_asked_meanwhile_is_answered(cluster: LocalCluster) -> None:
    """Goal: a database that is away stops no submission. Method: while it is frozen, a resubmission from the index, a
    new one, and a period by an old ledger offset."""
    party = cluster.parties[0]
    patient = RetryPolicy(deadline_s=20.0, attempt_max_s=20.0)
    async with NotaryClient(cluster.endpoint, patient) as client:
        first = party.sign()
        accepted = await client.notarise(first, bytes.fromhex((await client.describe()).notary_key))
        assert accepted.ledger_offset is not None
        async with asyncio.timeout(20):
            while (await read_status(cluster.conninfo)).ledger_end < accepted.ledger_offset:
                await asyncio.sleep(0.05)
        with frozen(cluster):
            again, fresh = await client.submit(first), await client.submit(party.sign())
            period = Deduplication(after_offset=accepted.ledger_offset)
            later = await client.submit(party.sign(accepted.tx_id, deduplication=period))
        assert isinstance(again, Notarised)
        assert (again.duplicate, again.ledger_offset) == (True, None)
        assert isinstance(fresh, Notarised)
        assert isinstance(later, Notarised)
        assert not later.duplicate  # its acceptance is at that offset, not after it
