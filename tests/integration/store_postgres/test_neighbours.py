"""Who else uses the participant's database: replicas of one name, and other ledgers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from replica.local.postgres import PostgresServer
from replica.notary.errors import LedgersShareDatabase, ReplicaNameTaken
from replica.store.neighbours import taken_twice
from replica.store.postgres.migrate import migrate
from replica.store.postgres.neighbours import check_alone, look_at_neighbours
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


async def test_a_second_ledger_is_not_made_in_a_database(dsn: str) -> None:
    """Goal: two ledgers never share a lock. Method: migrate under another search path."""
    async with looking(dsn) as connection:
        await connection.execute(b"CREATE SCHEMA second")
    with pytest.raises(LedgersShareDatabase, match="public"):
        await migrate(make_conninfo(dsn, options="-c search_path=second"), MIGRATION_LOCK)
    await check_alone(dsn, "r1", 3.0)


async def test_a_copy_in_another_schema_stops_no_replica(dsn: str) -> None:
    """Goal: a login that may make schemas keeps no replica down, and is found. Method: the tables copied where none of
    our search path leads; start on either side of it; look, migrate."""
    async with looking(dsn) as connection:
        await connection.execute(b"CREATE SCHEMA second")
        await connection.execute(b"CREATE TABLE second.participant AS SELECT * FROM public.participant")
    for conninfo, schema in ((dsn, "second"), (make_conninfo(dsn, options="-c search_path=second"), "public")):
        await check_alone(conninfo, "r1", 3.0)
        found = await look_at_neighbours(conninfo, ["r1"], 0.0)
        assert [ledger.schema for ledger in found.ledgers if not ledger.ours] == [schema]
        assert [ledger.schema for ledger in found.copies] == [schema]
    assert await migrate(dsn, MIGRATION_LOCK) == []


async def test_two_ledgers_on_our_search_path_are_refused(dsn: str) -> None:
    """Goal: nobody serves from tables that may be another's. Method: a copy in a schema that the path names as well,
    first or last, and in one of the role's own name."""
    async with looking(dsn) as connection:
        for schema in (b"second", b"notary"):
            await connection.execute(b"CREATE SCHEMA %b" % schema)
            await connection.execute(b"CREATE TABLE %b.participant AS SELECT * FROM public.participant" % schema)
    for path, rival in (("second,public", "public"), ("public,second", "second"), ("$user,public", "public")):
        conninfo = make_conninfo(dsn, options=f"-c search_path={path}")
        with pytest.raises(LedgersShareDatabase, match=rival):
            await check_alone(conninfo, "r1", 3.0)
        assert [ledger.schema for ledger in (await look_at_neighbours(conninfo, ["r1"], 0.0)).rivals] == [rival]


@pytest.mark.thorough
async def test_a_stranger_by_a_replicas_name_stops_nobody(dsn: str, postgres_server: PostgresServer) -> None:
    """Goal: a login that may connect, and nothing else, keeps no replica down, and is named. Method: its session goes
    by the replica's name, and works; many more do; a login that may write the ledger is taken for a replica."""
    scope = str(conninfo_to_dict(dsn)["dbname"])
    async with looking(postgres_server.dsn(scope)) as owner:
        await owner.execute(b"DROP ROLE IF EXISTS stranger")
        await owner.execute(b"CREATE ROLE stranger LOGIN PASSWORD 'x'")
        await owner.execute(f"GRANT CONNECT ON DATABASE {scope} TO stranger".encode())
    named = make_conninfo(postgres_server.dsn(scope, "stranger", "x"), application_name="r1")
    async with AsyncExitStack() as stack:
        for _ in range(10):
            stranger = await stack.enter_async_context(await psycopg.AsyncConnection.connect(named, autocommit=True))
        await stranger.execute(b"SELECT 1")
        began_s = asyncio.get_running_loop().time()
        await check_alone(dsn, "r1", 3.0)
        assert asyncio.get_running_loop().time() - began_s < 3.0  # nor does it wait for them to end
        found = await look_at_neighbours(dsn, ["r1"], 0.0)
        assert {(session.name, session.user, session.writes) for session in found.strangers} == {
            ("r1", "stranger", False)
        }
        async with looking(dsn) as connection:
            await connection.execute(b"GRANT INSERT ON completion TO stranger")
        with pytest.raises(ReplicaNameTaken, match="stranger"):
            await check_alone(dsn, "r1", 1.0)
        async with looking(dsn) as connection:
            await connection.execute(b"REVOKE ALL ON completion FROM stranger")


async def test_a_strangers_temporary_tables_keep_nobody_down(dsn: str) -> None:
    """Goal: a login that owns nothing stops no start. Method: its session has a table that looks like a ledger's."""
    async with looking(dsn) as stranger:
        await stranger.execute(b"CREATE TEMP TABLE participant (published_position bytea)")
        await check_alone(dsn, "r1", 3.0)
        found = await look_at_neighbours(dsn, ["r1"], 0.0)
        assert [ledger.schema for ledger in found.ledgers] == ["public"]
