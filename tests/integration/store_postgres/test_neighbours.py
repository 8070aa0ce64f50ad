"""Who else uses the participant's database: replicas of one name, and other ledgers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from replica.notary.errors import LedgersShareDatabase, ReplicaNameTaken
from replica.store.postgres.migrate import migrate
from replica.store.postgres.neighbours import check_alone, look_at_neighbours, taken_twice
from tests.integration.store_postgres.world import MIGRATION_LOCK, looking, open_session, sessions

pytestmark = pytest.mark.postgres


@asynccontextmanager
async def working(dsn: str) -> AsyncIterator[None]:
    """A replica called r1, whose session polls."""
    async with sessions(dsn) as opened:
        session = await open_session(dsn, opened)

        async def poll() -> None:
            while True:
                await session.look()
                await asyncio.sleep(0.2)

        polling = asyncio.create_task(poll())
        yield
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)


async def test_a_second_replica_of_a_name_does_not_start(dsn: str) -> None:
    """Goal: two replicas of one name never meet at the lock. Method: start beside a living one; another name."""
    async with working(dsn):
        with pytest.raises(ReplicaNameTaken, match=r"r1.*session \d+ of user"):
            await check_alone(dsn, "r1", 3.0)
        await check_alone(dsn, "r2", 3.0)
    await check_alone(dsn, "r1", 3.0)


async def test_what_an_earlier_process_left_is_waited_for(dsn: str) -> None:
    """Goal: a replica that was cut off starts again. Method: a silent session of its name, which the server ends as
    its lease is over; and one that nothing ends."""
    async with sessions(dsn) as opened:
        await open_session(dsn, opened)
        await check_alone(dsn, "r1", 3.0)
    silent = make_conninfo(dsn, application_name="r1")
    async with await psycopg.AsyncConnection.connect(silent, autocommit=True):
        with pytest.raises(ReplicaNameTaken):
            await check_alone(dsn, "r1", 1.0)


async def test_the_doctor_sees_living_sessions_of_one_name(dsn: str) -> None:
    """Goal: two that were started by an older release are found. Method: one, then two that work, one idle."""
    async with working(dsn):
        found = await look_at_neighbours(dsn, ["r1", "r2"], 0.5)
        assert [session.name for session in found.sessions] == ["r1"]
        assert not taken_twice(found.sessions)
        async with working(dsn), await psycopg.AsyncConnection.connect(make_conninfo(dsn, application_name="r1")):
            found = await look_at_neighbours(dsn, ["r1", "r2"], 0.5)
        assert [len(living) for living in taken_twice(found.sessions).values()] == [2]


async def test_two_ledgers_in_one_database_are_refused(dsn: str) -> None:
    """Goal: two ledgers never share a lock. Method: a second one under another search path: made, and found."""
    other = make_conninfo(dsn, options="-c search_path=second")
    async with looking(dsn) as connection:
        await connection.execute(b"CREATE SCHEMA second")
        with pytest.raises(LedgersShareDatabase, match="public"):
            await migrate(other, MIGRATION_LOCK)
        await check_alone(dsn, "r1", 3.0)
        await connection.execute(b"CREATE TABLE second.participant AS SELECT * FROM public.participant")
        for conninfo, schema in ((dsn, "second"), (other, "public")):
            with pytest.raises(LedgersShareDatabase, match=schema):
                await check_alone(conninfo, "r1", 3.0)
            found = await look_at_neighbours(conninfo, ["r1"], 0.0)
            assert [ledger.schema for ledger in found.ledgers if not ledger.ours] == [schema]
    assert await migrate(dsn, MIGRATION_LOCK) == []


async def test_a_strangers_temporary_tables_keep_nobody_down(dsn: str) -> None:
    """Goal: a login that owns nothing stops no start. Method: its session has a table that looks like a ledger's."""
    async with looking(dsn) as stranger:
        await stranger.execute(b"CREATE TEMP TABLE participant (published_position bytea)")
        await check_alone(dsn, "r1", 3.0)
        found = await look_at_neighbours(dsn, ["r1"], 0.0)
        assert [ledger.schema for ledger in found.ledgers] == ["public"]
