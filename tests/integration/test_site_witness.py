"""The witness of the sites' term on a real Postgres: two changes at a time, and a whole hand-over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from ha.clock import SystemClock
from ha.errors import HaError, SiteLogSuperseded, SiteServes, SiteTakenOver, WitnessUnavailable
from ha.site.core import Standing, Term, next_term
from ha.site.guard import SiteGuard, take
from ha.site.witness import PostgresWitness
from replica.local.postgres import PostgresServer
from tests.integration.log_postgres.cutting import Allowance, CuttingProxy
from tests.waiting import eventually

pytestmark = pytest.mark.postgres
LEASE_S = 3.0  # a renewal is given up after a tenth of it, on a machine that is busy


STEP_BYTES = 13  # shorter than any message of a statement


@pytest.fixture
def witness(database_dsn: str) -> PostgresWitness:
    """An empty one."""
    return PostgresWitness(database_dsn)


async def test_a_term_is_kept_renewed_and_taken(witness: PostgresWitness) -> None:
    """Goal: each change is judged by the row as it is. Method: all of them, those of other sites and logs refused."""
    first = Term(1, "a", "log-a", LEASE_S)
    assert await witness.see() is None
    assert await witness.renew("a", "log-a") == (None, False)
    assert await witness.take(None, first)
    assert not await witness.take(None, first)  # there is one
    renewed = replace(first, beat=1)
    assert await witness.renew("a", "log-a") == (renewed, True)
    assert await witness.renew("a", "copy") == (renewed, False)
    assert await witness.renew("b", "log-a") == (renewed, False)
    second = next_term(renewed, "b", "copy", 2 * LEASE_S)
    assert not await witness.take(first, second)  # it was renewed since
    assert await witness.take(renewed, second)
    assert not await witness.take(renewed, second)
    assert await witness.see() == second == replace(second, number=2, former_logs=("log-a",))
    assert await witness.renew("a", "log-a") == (second, False)


async def test_renewals_and_takers_at_one_time(witness: PostgresWitness) -> None:
    """Goal: no renewal is overlooked by whoever takes the term. Method: both at once, many times."""
    term = Term(1, "a", "log-a", LEASE_S)
    assert await witness.take(None, term)
    for _ in range(20):
        seen = await witness.see()
        assert seen is not None
        following = next_term(seen, "b", f"copy-{seen.number}", LEASE_S)
        (_, renewed), *taken = await asyncio.gather(
            witness.renew(seen.site, seen.log_id), witness.take(seen, following), witness.take(seen, following)
        )
        assert renewed + sum(taken) == 1


@pytest.mark.thorough
async def test_a_site_serves_until_another_has_its_term(witness: PostgresWitness) -> None:
    """Goal: the drivers do what the model's do. Method: a guard on real time; a taker is refused while it renews, and
    waits for its lease when it does not; the guard of the old site is then told."""
    told: list[HaError | None] = []
    clock = SystemClock()

    async def log_id() -> str:
        return "log-a"

    def guard() -> SiteGuard:
        return SiteGuard(witness, "a", log_id, clock=clock, lease_s=LEASE_S)

    await take(witness, "a", "log-a", clock, lease_s=LEASE_S)
    one = guard()
    assert one.standing() is Standing.UNCONFIRMED
    running = asyncio.create_task(one.run(told.append))
    await until(one.in_term)
    assert told == [None]
    with pytest.raises(SiteServes):
        await take(witness, "b", "copy", clock, lease_s=LEASE_S)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    taken = await take(witness, "b", "copy", clock, lease_s=LEASE_S)
    assert not one.in_term()  # it waited for that
    assert (taken.number, taken.site, taken.former_logs) == (2, "b", ("log-a",))
    again = guard()
    running = asyncio.create_task(again.run(told.append))
    await until(lambda: len(told) == 2)
    running.cancel()
    assert isinstance(told[1], SiteTakenOver) and "term 2 of site b" in told[1].detail
    with pytest.raises(SiteLogSuperseded):
        await take(witness, "a", "log-a", clock, lease_s=LEASE_S)
    assert (await take(witness, "a", "log-a", clock, lease_s=LEASE_S, though_superseded=True)).former_logs == ("copy",)


async def until(holds: Callable[[], bool]) -> None:
    """Return once it does."""

    async def asked() -> bool:
        return holds()

    await eventually(asked)


@pytest.fixture
async def proxy(database_dsn: str) -> AsyncIterator[CuttingProxy]:
    """The way to the witness."""
    server = conninfo_to_dict(database_dsn)
    async with CuttingProxy(str(server["host"]), int(str(server["port"]))) as made:
        yield made


def far(database_dsn: str, proxy: CuttingProxy) -> PostgresWitness:
    """The witness beyond the proxy."""
    return PostgresWitness(make_conninfo(database_dsn, host="127.0.0.1", port=proxy.port))


async def test_a_replica_that_freezes_in_its_question_bars_nobody(
    witness: PostgresWitness, database_dsn: str, proxy: CuttingProxy
) -> None:
    """Goal: the term can be taken, and renewed by others, wherever a replica froze. Method: hold a renewal after each
    few bytes of it; the term is taken meanwhile."""
    term = Term(1, "a", "log-a", LEASE_S)
    assert await witness.take(None, term)
    await far(database_dsn, proxy).renew("a", "log-a")
    whole = proxy.links[-1].to_server
    held: list[asyncio.Task[object]] = []
    for passed in range(STEP_BYTES, whole, STEP_BYTES):
        proxy.allowance = Allowance(to_server=passed, freeze=True)
        known = len(proxy.links)
        held.append(asyncio.create_task(far(database_dsn, proxy).renew("a", "log-a")))
        await until(lambda known=known, passed=passed: proxy.links[known:] and proxy.links[known].to_server == passed)
        await asyncio.sleep(0.02)  # the server has received it
        async with asyncio.timeout(5.0):
            seen = await witness.see()
            assert seen is not None
            assert await witness.take(seen, next_term(seen, "a", "log-a", LEASE_S)), passed
    for task in held:
        task.cancel()
    await asyncio.gather(*held, return_exceptions=True)


async def test_a_change_that_may_not_be_replicated_is_not_believed(witness: PostgresWitness, database_dsn: str) -> None:
    """Goal: what a standby may lack confirms nothing. Method: the server warns, as it does when a commit's wait for its
    standby is ended."""
    term = Term(1, "a", "log-a", LEASE_S)
    assert await witness.take(None, term)
    async with await psycopg.AsyncConnection.connect(database_dsn, autocommit=True) as connection:
        await connection.execute(
            "create function warns() returns trigger language plpgsql as "
            "$$ begin raise warning 'not replicated'; return new; end $$"
        )
        await connection.execute(
            "create trigger warns before update on notary_site.term for each row execute function warns()"
        )
    with pytest.raises(WitnessUnavailable, match="not replicated"):
        await witness.renew("a", "log-a")
    seen = await witness.see()
    assert seen is not None
    with pytest.raises(WitnessUnavailable, match="not replicated"):
        await witness.take(seen, next_term(seen, "b", "copy", LEASE_S))


async def test_a_witness_that_is_away(postgres_server: PostgresServer) -> None:
    """Goal: nothing is taken for an answer that is none. Method: a database that is not there."""
    away = PostgresWitness(postgres_server.dsn("no_such_database"))
    with pytest.raises(WitnessUnavailable):
        await away.see()
    with pytest.raises(WitnessUnavailable):
        await away.renew("a", "log-a")
