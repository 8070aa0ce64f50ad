"""The lock session on a real Postgres: the contract, then what only a real server shows."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
import uvloop
from psycopg import conninfo as libpq

from ha.errors import (
    LockLost,
    LockUnavailable,
    PoolerDetected,
    ReadOnlyServer,
    SessionSettingIgnored,
    UnsafeCommitMode,
    WritesNotSynced,
)
from ha.lock.ids import Counter, lock_id
from ha.lock.interface import ReleaseNote
from ha.lock.postgres import DirectConnection, PostgresLockSession, connection_parameters, limits_of
from ha.settings import ElectionSettings
from replica.local.ports import PortReservation
from replica.local.postgres import PostgresServer
from tests.closing import ended
from tests.contracts.lock_contract import CLOCK, SETTINGS, LockContract, World, grants
from tests.contracts.lock_machine import LockMachine, LockWorld, lock_world, memory_world
from tests.contracts.side_by_side import played
from tests.contracts.store_machine import PATIENT
from tests.hostile_defaults import make_hostile
from tests.waiting import eventually

pytestmark = [pytest.mark.postgres, pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy")]


@pytest.fixture(scope="module")
def event_loop_policy() -> asyncio.AbstractEventLoopPolicy:
    """The loop that the replicas run on: it watches sockets by their number, as the session's closing must respect."""
    policy: asyncio.AbstractEventLoopPolicy = uvloop.EventLoopPolicy()
    return policy


@pytest.fixture
def world(database_dsn: str, postgres_server: PostgresServer) -> Iterator[World]:
    with _world(database_dsn, postgres_server).watched() as made:
        yield made


class TestPostgresLock(LockContract):
    """See LockContract."""


@pytest.mark.thorough
class TestPostgresLockUnderHostileDefaults(LockContract):
    """See LockContract."""

    @pytest.fixture
    def world(self, database_dsn: str, postgres_server: PostgresServer) -> Iterator[World]:
        asyncio.run(make_hostile(database_dsn))
        with _world(database_dsn, postgres_server).watched() as made:
            yield made


@pytest.mark.parametrize("examples", [4, pytest.param(60, marks=pytest.mark.thorough)])
def test_it_answers_as_the_double_does(
    make_database: Callable[[], Awaitable[str]], postgres_server: PostgresServer, examples: int
) -> None:
    """Goal: see LockMachine. Method: random calls."""

    @asynccontextmanager
    async def world() -> AsyncIterator[LockWorld]:
        async with lock_world(_world(await make_database(), postgres_server, PATIENT)) as made:
            yield made

    played(partial(LockMachine, memory_world, world), examples=examples, steps=100)


def _world(dsn: str, server: PostgresServer, settings: ElectionSettings = SETTINGS) -> World:
    async def kill(session: Any) -> None:
        await terminate(server, dsn, session.name)

    async def stall(connection: DirectConnection) -> None:
        await connection.execute("set statement_timeout = 0")
        await connection.execute("select pg_sleep(10)")

    async def nothing(connection: DirectConnection) -> None:
        await connection.execute("select 1")

    def session(name: str, scope: str | None = None) -> Any:
        scope = scope or database_of(dsn)
        return PostgresLockSession(dsn, scope=scope, name=name, settings=settings, clock=CLOCK)

    return World(session, kill, stall, nothing)


def database_of(dsn: str) -> str:
    return str(libpq.conninfo_to_dict(dsn)["dbname"])


async def sql(server: PostgresServer, database: str, query: str, *parameters: object) -> list[Any]:
    """Ask as the superuser, on a connection of its own."""
    async with await psycopg.AsyncConnection.connect(server.dsn(database), autocommit=True) as connection:
        cursor = await connection.execute(query.encode(), parameters)
        return await cursor.fetchall() if cursor.description else []


async def terminate(server: PostgresServer, dsn: str, name: str) -> None:
    query = "select pg_terminate_backend(pid, 5000) from pg_stat_activity where application_name = %s and datname = %s"
    assert await sql(server, "postgres", query, name, database_of(dsn)) == [(True,)]


@asynccontextmanager
async def session_on(dsn: str, name: str = "R1", settings: ElectionSettings = SETTINGS) -> Any:
    session = PostgresLockSession(dsn, scope=database_of(dsn), name=name, settings=settings, clock=CLOCK)
    try:
        yield session
    finally:
        await session.close()


async def test_every_session_setting_is_in_force(database_dsn: str) -> None:
    """Goal: the server runs the session under our timeouts. Method: read them back in the session."""
    async with session_on(database_dsn) as session:
        await session.open()
        async with session.statement("test.settings") as connection:
            cursor = await connection.execute("select name, setting from pg_settings")
            in_force = dict(await cursor.fetchall())
        for name, value in limits_of(SETTINGS).items():
            assert in_force[name] == str(value), name
        assert in_force["application_name"] == "R1"


async def test_the_lock_is_the_published_one(database_dsn: str, postgres_server: PostgresServer) -> None:
    """Goal: the id in pg_locks is that of ids.py, session-level and exclusive. Method: read pg_locks as superuser."""
    async with session_on(database_dsn) as session:
        await session.open()
        await session.try_lock()
        query = """select classid::bigint, objid::bigint, objsubid, mode from pg_locks
                    where locktype = 'advisory' and database = (select oid from pg_database where datname = %s)"""
        rows = await sql(postgres_server, "postgres", query, database_of(database_dsn))
        expected = lock_id(database_of(database_dsn), Counter.PARTICIPANT_WRITE)
        assert rows == [(0, expected, 1, "ExclusiveLock")]


async def test_an_equal_id_in_another_database_is_not_our_lock(
    database_dsn: str, make_database: Callable[[], Awaitable[str]], postgres_server: PostgresServer
) -> None:
    """Goal: the held check filters by database. Method: somebody holds the same id in another one."""
    other = await make_database()
    async with session_on(database_dsn) as session:
        await session.open()
        async with await psycopg.AsyncConnection.connect(other, autocommit=True) as stranger:
            number = lock_id(database_of(database_dsn), Counter.PARTICIPANT_WRITE)
            await stranger.execute("select pg_advisory_lock(%s)", (number,))
            assert (await session.look()).free
            assert (await session.try_lock()).granted


async def test_a_refused_row_is_an_answer(database_dsn: str) -> None:
    """Goal: a definite error of the database does not cost the lock. Method: violate a key, twice."""
    async with session_on(database_dsn) as session:
        await session.open()
        await session.try_lock()
        async with session.statement("test.table") as connection:
            await connection.execute("create table once (id int primary key)")
            await connection.execute("insert into once values (1)")
        for _ in range(2):
            with pytest.raises(psycopg.errors.UniqueViolation):
                async with session.statement("test.twice") as connection, connection.transaction():
                    await connection.execute("insert into once values (1)")
        await session.confirm()


async def test_the_servers_statement_timeout_closes_the_session(database_dsn: str) -> None:
    """Goal: a statement that the server cancels has an unknown outcome. Method: sleep past statement_timeout."""
    async with session_on(database_dsn) as session:
        await session.open()
        with pytest.raises(LockLost) as lost:
            async with session.statement("test.slow") as connection:
                await connection.execute("select pg_sleep(0.55)")
        assert isinstance(lost.value.__cause__, psycopg.errors.QueryCanceled)
        assert session.closed


async def test_a_transaction_left_open_closes_the_session(database_dsn: str) -> None:
    """Goal: no transaction outlives its block. Method: begin, and leave."""
    async with session_on(database_dsn) as session:
        await session.open()
        with pytest.raises(LockLost, match="left open"):
            async with session.statement("test.open") as connection:
                await connection.execute("begin")
        assert session.closed


@pytest.mark.parametrize("way", ["deadline", "cancelled", "closed"])
async def test_a_statement_is_never_cancelled(database_dsn: str, postgres_server: PostgresServer, way: str) -> None:
    """Goal: the server never gets a cancel request: a write in flight ends by itself. Method: a write that outlives us.

    The insert sleeps at the server for 0.5 s; with a cancel request its row would be missing.
    """
    database = database_of(database_dsn)
    await sql(postgres_server, database, "create table fate (id int); ")
    await sql(postgres_server, database, "grant all on fate to public")
    settings = ElectionSettings(
        lease_s=1.0, heartbeat_s=0.2, margin_s=0.2, answer_max_s=0.25, statement_max_s=0.2, drain_max_s=0.6
    )
    async with session_on(database_dsn, settings=settings) as session:
        await session.open()

        async def write() -> None:
            async with session.statement("test.write") as connection:
                # one message, so that the server is past our leaving; no client check, or it would notice that we left
                await connection.execute(
                    "select set_config('statement_timeout', '0', false),"
                    " set_config('client_connection_check_interval', '0', false)"
                )
                await connection.execute("insert into fate select 1 from pg_sleep(0.5)")

        task = asyncio.create_task(write())
        await asyncio.sleep(0.1)
        if way == "cancelled":
            task.cancel()
        elif way == "closed":
            await session.close()
        with pytest.raises((LockLost, asyncio.CancelledError)):
            await task
        assert session.closed
        await asyncio.sleep(0.6)
        assert await sql(postgres_server, database, "select id from fate") == [(1,)]


@pytest.mark.parametrize("mode", ["off", "local"])
async def test_an_asynchronous_commit_is_refused(database_dsn: str, postgres_server: PostgresServer, mode: str) -> None:
    """Goal: epochs are durable, on the standby as well. Method: both modes that wait for none, for the database."""
    database = database_of(database_dsn)
    await sql(postgres_server, "postgres", f'alter database "{database}" set synchronous_commit = {mode}')
    async with session_on(database_dsn) as session:
        with pytest.raises(UnsafeCommitMode):
            await session.open()


async def test_a_server_that_syncs_nothing_is_refused(servers_folder: Path, ports: PortReservation) -> None:
    """Goal: an epoch, and a published position that covers answers, outlive a power cut. Method: one server, started
    with each setting off and then with none: it opens no session until then."""
    folder = servers_folder / "postgres-unsynced"
    for off in ("fsync", "full_page_writes", None):
        server = PostgresServer(folder, ports.take(), {} if off is None else {off: "off"})
        await server.start()
        try:
            async with session_on(server.dsn()) as session:
                with nullcontext() if off is None else pytest.raises(WritesNotSynced):
                    await session.open()
        finally:
            await (server.remove() if off is None else server.stop())


async def test_a_read_only_server_is_refused_and_lost(database_dsn: str, postgres_server: PostgresServer) -> None:
    """Goal: no leading from a server that takes no writes. Method: read-only before and after opening."""
    database = database_of(database_dsn)
    async with session_on(database_dsn) as session:
        await session.open()
        await session.try_lock()
        async with session.statement("test.demote") as connection:
            await connection.execute("set default_transaction_read_only = on")
        with pytest.raises(ReadOnlyServer):
            await session.confirm()
        assert session.closed
    await sql(postgres_server, "postgres", f'alter database "{database}" set default_transaction_read_only = on')
    async with session_on(database_dsn) as session:
        with pytest.raises(LockUnavailable, match="read-only") as refused:
            await session.open()
        assert refused.value.retry


async def test_a_pooler_in_between_is_detected(database_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: no leading through a pooler. Method: a protocol pid that is not the session's, as a pooler shows it."""
    monkeypatch.setattr(psycopg.ConnectionInfo, "backend_pid", property(lambda info: info.pgconn.backend_pid + 1))
    async with session_on(database_dsn) as session:
        with pytest.raises(PoolerDetected):
            await session.open()


async def test_a_timeout_that_did_not_arrive_is_noticed(database_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: without the server's lease there is no safety; refuse. Method: a proxy that drops the start-up options."""
    async with session_on(database_dsn) as session:
        monkeypatch.setitem(session._parameters, "options", "")
        with pytest.raises(SessionSettingIgnored):
            await session.open()


async def test_an_unreachable_server_is_worth_retrying() -> None:
    """Goal: a refused connection is LockUnavailable. Method: a port where nobody listens."""
    async with session_on("host=127.0.0.1 port=1 dbname=notary user=notary") as session:
        with pytest.raises(LockUnavailable) as refused:
            await session.open()
        assert refused.value.retry


HOLDER = """
import asyncio, sys
from ha.clock import SystemClock
from ha.settings import ElectionSettings
from ha.lock.postgres import PostgresLockSession

async def main(dsn, scope):
    settings = ElectionSettings(
        lease_s=1.0, heartbeat_s=0.2, margin_s=0.2, answer_max_s=0.6, statement_max_s=0.4, drain_max_s=0.6
    )
    session = PostgresLockSession(dsn, scope=scope, name="frozen", settings=settings, clock=SystemClock())
    await session.open()
    assert (await session.try_lock()).granted
    print("held", flush=True)
    while True:
        await session.confirm()
        await asyncio.sleep(settings.heartbeat_s)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("fault", [signal.SIGSTOP, signal.SIGKILL], ids=["stopped", "killed"])
async def test_a_holder_that_is_stopped_or_killed_loses_the_lock(database_dsn: str, fault: signal.Signals) -> None:
    """Goal: the server takes the lock from a frozen process after the lease, from a dead one at once.

    Method: a process of its own holds the lock and confirms it; stop or kill it; a peer asks. The frozen one, woken,
    finds its session lost.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLDER, database_dsn, database_of(database_dsn),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert await asyncio.wait_for(process.stdout.readline(), 20) == b"held\n"
        async with session_on(database_dsn, "R2") as peer:
            await peer.open()
            for _ in range(10):  # two leases: as long as it lives it keeps the lock
                assert not (await peer.look()).free
                await asyncio.sleep(SETTINGS.heartbeat_s)
            process.send_signal(fault)
            started_s = CLOCK.boottime_s()
            await eventually(lambda: grants(peer))
            waited_s = CLOCK.boottime_s() - started_s
            if fault == signal.SIGKILL:
                assert waited_s < 0.5
            else:
                assert SETTINGS.lease_s - SETTINGS.heartbeat_s - 0.1 <= waited_s < SETTINGS.lease_s + 0.5
                os.kill(process.pid, signal.SIGCONT)
                _, errors = await asyncio.wait_for(process.communicate(), 10)
                assert b"HA_LOCK_LOST" in errors
    finally:
        await ended(process)


async def test_a_holder_that_is_silent_within_a_statement_loses_the_lock(database_dsn: str) -> None:
    """Goal: the lease also ends where no timeout of the server's reaches. Method: a holder sends all of a statement but
    its end, as one does that is frozen then; a peer asks, and only asking it helps: a look leaves the holder alone."""
    parameters = connection_parameters(database_dsn, "R1", SETTINGS)
    question = f"select pg_advisory_lock({lock_id(database_of(database_dsn), Counter.PARTICIPANT_WRITE)})"
    holder = await DirectConnection.connect(**parameters, autocommit=True)  # type: ignore[arg-type]
    async with session_on(database_dsn, "R2") as peer:
        await peer.open()
        half_way = holder.pgconn
        try:
            half_way.enter_pipeline_mode()
            half_way.send_query_params(question.encode(), None)
            half_way.send_flush_request()  # carry it out; what would end the statement never comes
            assert half_way.flush() == 0
            await eventually(lambda: holds(peer, "R1"))
            began_s = CLOCK.boottime_s()
            while CLOCK.boottime_s() < began_s + 2 * SETTINGS.lease_s:
                assert await holds(peer, "R1")
                await asyncio.sleep(SETTINGS.heartbeat_s)
            assert not await grants(peer)
            await eventually(lambda: grants(peer))
        finally:
            holder.finish()


async def holds(peer: PostgresLockSession, name: str) -> bool:
    owner = (await peer.look()).owner
    return owner is not None and owner.name == name


async def test_a_long_statement_within_the_lease_keeps_the_lock(database_dsn: str) -> None:
    """Goal: no peer ends a session within its lease. Method: a statement of half a lease; the peer keeps asking."""
    async with session_on(database_dsn, "R1") as holder, session_on(database_dsn, "R2") as peer:
        await holder.open()
        await peer.open()
        assert (await holder.try_lock()).granted
        async with holder.statement("test.busy") as connection, asyncio.TaskGroup() as group:
            await connection.execute("set statement_timeout = 0")
            busy = group.create_task(connection.execute("select pg_sleep(0.5)"))
            while not busy.done():
                assert not await grants(peer)
        assert await holder.confirm() > 0


@pytest.mark.postgres
async def test_an_idle_session_hears_its_end_and_why(database_dsn: str, postgres_server: PostgresServer) -> None:
    """Goal: a killed holder stops at once, and can say why. Method: terminate its backend while it asks nothing."""
    async with session_on(database_dsn, "R1") as session:
        await session.open()
        await session.try_lock()
        await terminate(postgres_server, database_dsn, "R1")
        why = await asyncio.wait_for(session.wait_closed(), 5)
    assert "terminating connection due to administrator command" in why


@pytest.mark.postgres
async def test_no_notification_costs_the_holder_its_session(database_dsn: str) -> None:
    """Goal: a login that may connect cannot end an activation. Method: nested JSON, long and wrong notes on the lock's
    channel, between two statements of the holder and within one; then a peer that got all of them gets a real note."""
    scope = database_of(database_dsn)
    channel = f"ha_lock_{lock_id(scope, Counter.PARTICIPANT_WRITE)}"
    async with session_on(database_dsn) as holder, session_on(database_dsn, "R2") as peer:
        await holder.open()
        await holder.try_lock()
        await peer.open()
        async with await psycopg.AsyncConnection.connect(database_dsn, autocommit=True) as stranger:
            for text in ("[" * 7_990, '{"by":' * 1_300, '{"by":{},"to":[]}', "é" * 3_000, "{}"):
                await stranger.execute("select pg_notify(%s, %s)", (channel, text))
                await asyncio.sleep(0.05)  # received while idle
                async with holder.statement("test.slow") as connection:
                    await connection.execute("select pg_notify(%s, %s)", (channel, text))  # received with the answer
                await holder.confirm()
        assert not holder.closed
        assert not peer.closed
        await holder.release("R2")
        async with asyncio.timeout(5):
            assert await peer.wait_release() == ReleaseNote("R1", "R2")


async def test_an_idle_session_hears_a_release_and_for_whom(database_dsn: str) -> None:
    """Goal: a hand-over waits for no poll. Method: nobody asks anything; the note comes in by itself."""
    async with session_on(database_dsn, "R1") as first, session_on(database_dsn, "R2") as second:
        await first.open()
        await second.open()
        await first.try_lock()
        await first.release("R2")
        note = await asyncio.wait_for(second.wait_release(), 5)
        assert (note.by, note.to) == ("R1", "R2")
        assert (await second.look()).released == note
        assert (await second.try_lock()).granted


@pytest.mark.parametrize("function", ["pg_try_advisory_lock", "pg_try_advisory_lock_shared"])
async def test_a_foreign_holder_is_told_by_session_user_and_name(
    postgres_server: PostgresServer, database_dsn: str, function: str
) -> None:
    """Goal: a login that may connect may take the lock, and operators see which it is. Method: a login with no rights
    but to connect takes it, exclusively or shared; a replica asks for it, and looks."""
    database = str(libpq.conninfo_to_dict(database_dsn)["dbname"])
    async with await psycopg.AsyncConnection.connect(postgres_server.dsn(), autocommit=True) as superuser:
        await superuser.execute(f"drop role if exists stranger_{database}".encode())
        await superuser.execute(f"create role stranger_{database} login password 'x'".encode())
        await superuser.execute(f"grant connect on database {database} to stranger_{database}".encode())
        stranger = libpq.make_conninfo(
            database_dsn, user=f"stranger_{database}", password="x", application_name="report"
        )
        async with await psycopg.AsyncConnection.connect(stranger, autocommit=True) as taker:
            await taker.execute(f"select {function}(%s)".encode(), (lock_id(database, Counter.PARTICIPANT_WRITE),))
            session = PostgresLockSession(database_dsn, scope=database, name="R1", settings=SETTINGS, clock=CLOCK)
            await session.open()
            try:
                asked = await session.try_lock()
                seen = (await session.look()).owner
            finally:
                await session.close()
            assert not asked.granted
            assert asked.owner == seen
            assert seen is not None
            assert (seen.pid, seen.name, seen.user) == (taker.info.backend_pid, "report", f"stranger_{database}")
            assert seen.is_foreign(["R1", "R2"])
            assert f"user stranger_{database}" in str(seen)
        await superuser.execute(f"revoke all on database {database} from stranger_{database}".encode())
        await superuser.execute(f"drop role stranger_{database}".encode())
