"""Elections over a real Postgres: the driver, the session and the server's own timeouts together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random

import psycopg
import pytest
from psycopg import conninfo as libpq

from ha.clock import SystemClock
from ha.election.driver import Election, Role
from ha.election.states import Handover, Readiness
from ha.ending import Ending
from ha.lock.postgres import PostgresLockSession
from ha.settings import ElectionSettings
from replica.local.postgres import PostgresServer

CLOCK = SystemClock()
SETTINGS = ElectionSettings(hold_down_s=1.0)
pytestmark = pytest.mark.postgres


class Service:
    """Takes an epoch on the lock session when it activates, and writes under it when asked."""

    def __init__(self) -> None:
        self.session: PostgresLockSession | None = None
        self.reasons: list[str] = []

    async def activate(self, session: PostgresLockSession) -> None:
        async with session.statement("epoch") as connection:
            await connection.execute("insert into epochs default values")
        self.session = session

    async def step_down(self, ending: Ending) -> None:
        self.reasons.append(str(ending))

    def readiness(self) -> Readiness:
        return Readiness(True, 0)

    def role_changed(self, role: Role, reason: str) -> None:
        pass

    def session_changed(self, problem: str | None) -> None:
        pass


class Cluster:
    """Two replicas in this process, one lock."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.services = [Service(), Service()]
        self.elections = [
            Election(
                lambda name=name: PostgresLockSession(  # type: ignore[misc]
                    dsn, scope=str(libpq.conninfo_to_dict(dsn)["dbname"]), name=name, settings=SETTINGS, clock=CLOCK
                ),
                clock=CLOCK,
                settings=SETTINGS,
                random=Random(seed),
            )
            for seed, name in enumerate(("R1", "R2"))
        ]
        self.tasks = [
            asyncio.create_task(election.run(service))
            for election, service in zip(self.elections, self.services, strict=True)
        ]

    def leaders(self) -> list[int]:
        return [number for number, election in enumerate(self.elections) if election.is_leading()]

    async def leader(self, other_than: int | None = None) -> tuple[int, float]:
        """Wait for one to lead; which one, and how long it took. Two at a time fail the test."""
        started_s = CLOCK.boottime_s()
        async with asyncio.timeout(10):
            while True:
                leaders = self.leaders()
                assert len(leaders) < 2
                if leaders and leaders != [other_than]:
                    return leaders[0], CLOCK.boottime_s() - started_s
                await asyncio.sleep(0.005)

    async def stop(self) -> None:
        for election in self.elections:
            election.stop()
        async with asyncio.timeout(10):
            await asyncio.gather(*self.tasks)


@pytest.fixture
async def cluster(make_database: object) -> AsyncIterator[Cluster]:
    dsn = await make_database()  # type: ignore[operator]
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        await connection.execute("create table epochs (epoch bigint generated always as identity primary key)")
    cluster = Cluster(dsn)
    yield cluster
    await cluster.stop()


async def test_one_leads_and_a_stop_hands_over_at_once(cluster: Cluster) -> None:
    """Goal: a graceful stop costs half a second at most. Method: stop the leader."""
    first, _ = await cluster.leader()
    await asyncio.sleep(SETTINGS.lease_s + 0.5)  # heartbeats and polls keep both sessions alive
    assert cluster.leaders() == [first]
    cluster.elections[first].stop()
    second, took_s = await cluster.leader(other_than=first)
    assert second != first
    assert took_s < 0.5
    await cluster.tasks[first]


async def test_switchover_names_the_other(cluster: Cluster) -> None:
    """Goal: a hand-over in well under a second. Method: there and back."""
    for _ in range(2):
        first, _ = await cluster.leader()
        report = await cluster.elections[first].switchover()
        assert report.outcome is Handover.TAKEN_OVER
        assert report.took_over_by == f"R{2 - first}"
        assert report.took_s < 0.7
        await cluster.leader(other_than=first)


async def test_a_terminated_session_deposes_its_holder_and_its_write_fails(
    cluster: Cluster, postgres_server: PostgresServer
) -> None:
    """Goal: one leader again, with a new epoch; nothing the old one wrote afterwards is there. Method: kill, write."""
    first, _ = await cluster.leader()
    session = cluster.services[first].session
    assert session is not None
    await run(postgres_server, "select pg_terminate_backend(pid) from pg_stat_activity where application_name = %s",
              f"R{first + 1}")  # fmt: skip
    with pytest.raises(Exception, match="HA_LOCK_LOST"):
        async with session.statement("late") as connection:
            await connection.execute("insert into epochs default values")
    assert cluster.leaders() != [first]  # the claim ends with the session, before any step-down
    await cluster.leader()
    async with await psycopg.AsyncConnection.connect(cluster.dsn) as connection:
        cursor = await connection.execute("select count(*) from epochs")
        assert await cursor.fetchone() == (2,)


async def test_a_restart_of_the_database_ends_in_one_leader(cluster: Cluster, postgres_server: PostgresServer) -> None:
    """Goal: a crash of the server costs an election, not a person. Method: end every session at once."""
    await cluster.leader()
    await run(postgres_server, "select pg_terminate_backend(pid) from pg_stat_activity where application_name like %s",
              "R_")  # fmt: skip
    await asyncio.sleep(SETTINGS.heartbeat_s + 2 * SETTINGS.tick_s)  # both have noticed
    await cluster.leader()
    await asyncio.sleep(1.0)
    assert len(cluster.leaders()) == 1


async def run(server: PostgresServer, query: str, *parameters: object) -> None:
    async with await psycopg.AsyncConnection.connect(server.dsn(), autocommit=True) as connection:
        await connection.execute(query.encode(), parameters)
