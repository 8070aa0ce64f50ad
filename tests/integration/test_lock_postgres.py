"""The lock session's contract, on a real Postgres and on the in-memory double; then what only a real server shows."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
import uvloop
from psycopg import conninfo as libpq

from ha.clock import SystemClock
from ha.election.settings import ElectionSettings
from ha.errors import (
    InvariantBroken,
    LockLost,
    LockUnavailable,
    PoolerDetected,
    ReadOnlyServer,
    ScopeMismatch,
    SessionSettingIgnored,
    UnsafeCommitMode,
)
from ha.lock.ids import Counter, lock_id
from ha.lock.interface import NEVER_S
from ha.lock.memory import MemoryLockServer, MemoryLockSession
from ha.lock.postgres import DirectConnection, PostgresLockSession, session_options
from replica.local.postgres import PostgresServer
from tests.waiting import eventually

SETTINGS = ElectionSettings(
    lease_s=1.0, heartbeat_s=0.2, margin_s=0.2, answer_max_s=0.6, statement_max_s=0.4, drain_max_s=0.6
)
CLOCK = SystemClock()
pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy")


@pytest.fixture(scope="module")
def event_loop_policy() -> asyncio.AbstractEventLoopPolicy:
    """The loop that the replicas run on: it watches sockets by their number, as the session's closing must respect."""
    policy: asyncio.AbstractEventLoopPolicy = uvloop.EventLoopPolicy()
    return policy


@dataclass
class World:
    """One database with one lock: how to open sessions on it, and how to do things to them."""

    session: Callable[..., Any]  # (name, scope=None) -> a session, not open
    kill: Callable[[Any], Awaitable[None]]  # the server ends the session of its holder
    stall: Callable[[Any], Awaitable[None]]  # runs a statement that is not answered in time
    nothing: Callable[[Any], Awaitable[None]]  # runs a trivial statement on what `statement` yields


async def opened(world: World, name: str) -> Any:
    session = world.session(name)
    await session.open()
    return session


@pytest.fixture(params=["memory", pytest.param("postgres", marks=pytest.mark.postgres)])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    made: list[Any] = []

    def keep(session: Any) -> Any:
        made.append(session)
        return session

    if request.param == "memory":
        yield _memory_world(keep)
    else:
        dsn = request.getfixturevalue("database_dsn")
        yield _postgres_world(dsn, request.getfixturevalue("postgres_server"), keep)
    for session in made:
        assert session.closed, f"the test left {session.name} open"


def _memory_world(keep: Callable[[Any], Any]) -> World:
    server = MemoryLockServer(CLOCK, lease_s=SETTINGS.lease_s)

    async def kill(session: Any) -> None:
        server.end(session._connection.pid)

    async def stall(connection: Any) -> None:
        await asyncio.sleep(10)

    async def nothing(connection: Any) -> None:
        await connection.run(lambda: None)

    def session(name: str, scope: str = "notary") -> Any:
        return keep(MemoryLockSession(server, name=name, settings=SETTINGS, clock=CLOCK, scope=scope))

    return World(session, kill, stall, nothing)


def _postgres_world(dsn: str, server: PostgresServer, keep: Callable[[Any], Any]) -> World:
    async def kill(session: Any) -> None:
        await terminate(server, dsn, session.name)

    async def stall(connection: DirectConnection) -> None:
        await connection.execute("set statement_timeout = 0")
        await connection.execute("select pg_sleep(10)")

    async def nothing(connection: DirectConnection) -> None:
        await connection.execute("select 1")

    def session(name: str, scope: str | None = None) -> Any:
        scope = scope or database_of(dsn)
        return keep(PostgresLockSession(dsn, scope=scope, name=name, settings=SETTINGS, clock=CLOCK))

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


# ------------------------------------------------------------------------------------------------------- the contract


async def test_one_holder_at_a_time_and_the_others_see_who(world: World) -> None:
    """Goal: the lock is exclusive, and its owner is named. Method: two sessions ask, look and confirm."""
    first, second = await opened(world, "R1"), await opened(world, "R2")
    assert (await second.look()).free
    before_s = CLOCK.boottime_s()
    granted = await first.try_lock()
    assert granted.granted
    assert before_s <= granted.asked_at_s <= CLOCK.boottime_s()
    refused = await second.try_lock()
    assert not refused.granted
    assert refused.owner is not None
    assert refused.owner.name == "R1"
    assert (await second.look()).owner == refused.owner
    assert await first.confirm() >= granted.asked_at_s
    with pytest.raises(LockLost):
        await second.confirm()
    assert second.closed
    await first.close()


async def test_a_granted_lock_is_never_asked_for_again(world: World) -> None:
    """Goal: no second grant, which would need a second unlock. Method: ask twice."""
    session = await opened(world, "R1")
    assert (await session.try_lock()).granted
    with pytest.raises(InvariantBroken):
        await session.try_lock()
    await session.close()


async def test_closing_frees_the_lock_and_may_be_repeated(world: World) -> None:
    """Goal: the lock dies with its session. Method: close twice, ask from another."""
    first, second = await opened(world, "R1"), await opened(world, "R2")
    await first.try_lock()
    await first.close()
    await first.close()
    await asyncio.wait_for(first.wait_closed(), 1)
    await eventually(lambda: _grants(second))
    with pytest.raises(LockLost):
        await first.confirm()
    await second.close()


async def _grants(session: Any) -> bool:
    return bool((await session.try_lock()).granted)


async def test_a_release_on_purpose_is_told_to_the_others_and_a_loss_is_not(world: World) -> None:
    """Goal: peers can tell a release from an interruption. Method: release; take it; kill the holder; look."""
    first, second, third = [await opened(world, name) for name in ("R1", "R2", "R3")]
    await first.try_lock()
    assert not (await second.look()).free
    await first.release()
    view = await second.look()
    assert view.free
    assert view.released_on_purpose
    assert (await third.try_lock()).granted
    assert not (await second.look()).released_on_purpose
    await world.kill(third)
    view = await second.look()
    assert view.free
    assert not view.released_on_purpose
    with pytest.raises(LockLost):
        await third.confirm()
    for session in (first, second):
        await session.close()


async def test_a_killed_session_learns_it_with_its_next_statement(world: World) -> None:
    """Goal: a lost lock is LockLost and the session closed; no write is applied silently. Method: kill, then write."""
    session = await opened(world, "R1")
    await session.try_lock()
    await world.kill(session)
    with pytest.raises(LockLost):
        async with session.statement("test.write") as connection:
            await world.nothing(connection)
    assert session.closed


async def test_a_silent_session_loses_the_lock_after_the_lease(world: World) -> None:
    """Goal: the server frees the lock of a holder that says nothing. Method: say nothing; a peer asks."""
    holder, peer = await opened(world, "R1"), await opened(world, "R2")
    granted = await holder.try_lock()
    async with asyncio.timeout(5):
        while not (await peer.try_lock()).granted:
            await asyncio.sleep(0.02)
    waited_s = CLOCK.boottime_s() - granted.asked_at_s
    assert SETTINGS.lease_s <= waited_s < SETTINGS.lease_s + 1.0
    with pytest.raises(LockLost):
        await holder.confirm()
    await peer.close()


async def test_answered_statements_count_from_their_sending(world: World) -> None:
    """Goal: an answered statement is a heartbeat, dated when sent; a block that asks nothing is not. Method: both."""
    session = world.session("R1")
    assert session.answered_at_s == NEVER_S
    await session.open()
    before_s = CLOCK.boottime_s()
    async with session.statement("test.slow") as connection:
        sent_s = CLOCK.boottime_s()
        await world.nothing(connection)
        await asyncio.sleep(0.05)
    assert before_s <= session.answered_at_s <= sent_s
    answered_at_s = session.answered_at_s
    async with session.statement("test.idle"):
        pass
    assert session.answered_at_s == answered_at_s
    await session.close()


async def test_no_answer_in_time_closes_the_session(world: World) -> None:
    """Goal: an unknown outcome is LockLost after answer_max_s, and the lock goes. Method: a statement that stalls."""
    session, peer = await opened(world, "R1"), await opened(world, "R2")
    await session.try_lock()
    started_s = CLOCK.boottime_s()
    with pytest.raises(LockLost):
        async with session.statement("test.stall") as connection:
            await world.stall(connection)
    assert SETTINGS.answer_max_s <= CLOCK.boottime_s() - started_s < SETTINGS.answer_max_s + 0.5
    assert session.closed
    await eventually(lambda: _grants(peer))
    await peer.close()


async def test_close_wakes_who_waits_for_an_answer(world: World) -> None:
    """Goal: nobody waits on a closed session. Method: close while one statement stalls and another waits its turn."""
    session = await opened(world, "R1")

    async def stalls() -> None:
        async with session.statement("test.stall") as connection:
            await world.stall(connection)

    waiting = [asyncio.create_task(stalls()), asyncio.create_task(session.confirm())]
    await asyncio.sleep(0.1)
    started_s = CLOCK.boottime_s()
    await session.close()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [LockLost, LockLost]
    assert CLOCK.boottime_s() - started_s < 0.3


async def test_a_cancelled_user_closes_the_session(world: World) -> None:
    """Goal: a task cancelled in mid-statement leaves no half-known session behind. Method: cancel one that stalls."""
    session = await opened(world, "R1")

    async def stalls() -> None:
        async with session.statement("test.stall") as connection:
            await world.stall(connection)

    task = asyncio.create_task(stalls())
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert session.closed


async def test_statements_take_turns(world: World) -> None:
    """Goal: one user of the connection at a time, first come first served. Method: three overlapping users."""
    session = await opened(world, "R1")
    order: list[str] = []

    async def use(name: str) -> None:
        async with session.statement(name) as connection:
            order.append(f"{name} in")
            await world.nothing(connection)
            await asyncio.sleep(0.01)
            order.append(f"{name} out")

    await asyncio.gather(use("a"), use("b"), use("c"))
    assert order == ["a in", "a out", "b in", "b out", "c in", "c out"]
    await session.close()


async def test_an_error_of_the_user_leaves_the_session_alive(world: World) -> None:
    """Goal: only unknown outcomes cost the lock. Method: a user raises between statements."""
    session = await opened(world, "R1")
    await session.try_lock()
    with pytest.raises(KeyError):
        async with session.statement("test.error") as connection:
            await world.nothing(connection)
            raise KeyError("mine")
    await session.confirm()
    await session.close()


async def test_another_scope_is_refused(world: World) -> None:
    """Goal: a replica with another name for the database does not start. Method: open under a wrong scope."""
    session = world.session("R1", scope="elsewhere")
    with pytest.raises(ScopeMismatch) as refusal:
        await session.open()
    assert not refusal.value.retry
    assert session.closed


async def test_the_same_clock_shows_no_skew_and_the_identity_is_known(world: World) -> None:
    """Goal: clock and cluster are known once open. Method: one machine, so one clock."""
    session = await opened(world, "R1")
    assert abs(session.clock_skew_s) < 0.01
    identity = await session.database_identity()
    assert identity.system_identifier
    assert identity.timeline == 1
    await session.close()


# --------------------------------------------------------------------------------------------- the double's own faults


async def test_memory_refuses_what_postgres_would() -> None:
    """Goal: the double can play each refusal. Method: one switch at a time."""
    for attribute, value, error in [
        ("pooled", True, PoolerDetected),
        ("read_only", True, ReadOnlyServer),
        ("commits_durably", False, UnsafeCommitMode),
        ("accepts", False, LockUnavailable),
    ]:
        server = MemoryLockServer(CLOCK, lease_s=1.0)
        setattr(server, attribute, value)
        session = MemoryLockSession(server, name="R1", settings=SETTINGS, clock=CLOCK)
        with pytest.raises(error):
            await session.open()
        assert session.closed


async def test_memory_shows_a_clock_that_is_off() -> None:
    """Goal: skew has the right sign and size. Method: a database two seconds ahead."""
    server = MemoryLockServer(CLOCK, lease_s=1.0)
    server.clock_ahead_us = 2_000_000
    session = MemoryLockSession(server, name="R1", settings=SETTINGS, clock=CLOCK)
    await session.open()
    assert session.clock_skew_s == pytest.approx(-2.0, abs=0.01)


# --------------------------------------------------------------------------------------------------- Postgres only


@asynccontextmanager
async def session_on(dsn: str, name: str = "R1", settings: ElectionSettings = SETTINGS) -> Any:
    session = PostgresLockSession(dsn, scope=database_of(dsn), name=name, settings=settings, clock=CLOCK)
    try:
        yield session
    finally:
        await session.close()


@pytest.mark.postgres
async def test_every_session_setting_is_in_force(database_dsn: str) -> None:
    """Goal: the server runs the session under our timeouts. Method: read them back in the session."""
    async with session_on(database_dsn) as session:
        await session.open()
        async with session.statement("test.settings") as connection:
            cursor = await connection.execute("select name, setting from pg_settings")
            in_force = dict(await cursor.fetchall())
        for name, value in session_options(SETTINGS).items():
            assert in_force[name] == str(value), name
        assert in_force["application_name"] == "R1"


@pytest.mark.postgres
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


@pytest.mark.postgres
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


@pytest.mark.postgres
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


@pytest.mark.postgres
async def test_the_servers_statement_timeout_closes_the_session(database_dsn: str) -> None:
    """Goal: a statement that the server cancels has an unknown outcome. Method: sleep past statement_timeout."""
    async with session_on(database_dsn) as session:
        await session.open()
        with pytest.raises(LockLost) as lost:
            async with session.statement("test.slow") as connection:
                await connection.execute("select pg_sleep(0.55)")
        assert isinstance(lost.value.__cause__, psycopg.errors.QueryCanceled)
        assert session.closed


@pytest.mark.postgres
async def test_a_transaction_left_open_closes_the_session(database_dsn: str) -> None:
    """Goal: no transaction outlives its block. Method: begin, and leave."""
    async with session_on(database_dsn) as session:
        await session.open()
        with pytest.raises(LockLost, match="left open"):
            async with session.statement("test.open") as connection:
                await connection.execute("begin")
        assert session.closed


@pytest.mark.postgres
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


@pytest.mark.postgres
async def test_an_asynchronous_commit_is_refused(database_dsn: str, postgres_server: PostgresServer) -> None:
    """Goal: epochs are durable. Method: switch synchronous_commit off for the database."""
    database = database_of(database_dsn)
    await sql(postgres_server, "postgres", f'alter database "{database}" set synchronous_commit = off')
    async with session_on(database_dsn) as session:
        with pytest.raises(UnsafeCommitMode):
            await session.open()


@pytest.mark.postgres
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


@pytest.mark.postgres
async def test_a_pooler_in_between_is_detected(database_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: no leading through a pooler. Method: a protocol pid that is not the session's, as a pooler shows it."""
    monkeypatch.setattr(psycopg.ConnectionInfo, "backend_pid", property(lambda info: info.pgconn.backend_pid + 1))
    async with session_on(database_dsn) as session:
        with pytest.raises(PoolerDetected):
            await session.open()


@pytest.mark.postgres
async def test_a_timeout_that_did_not_arrive_is_noticed(database_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: without the server's lease there is no safety; refuse. Method: a proxy that drops the start-up options."""
    async with session_on(database_dsn) as session:
        monkeypatch.setitem(session._parameters, "options", "")
        with pytest.raises(SessionSettingIgnored):
            await session.open()


@pytest.mark.postgres
async def test_an_unreachable_server_is_worth_retrying() -> None:
    """Goal: a refused connection is LockUnavailable. Method: a port where nobody listens."""
    async with session_on("host=127.0.0.1 port=1 dbname=notary user=notary") as session:
        with pytest.raises(LockUnavailable) as refused:
            await session.open()
        assert refused.value.retry


HOLDER = """
import asyncio, sys
from ha.clock import SystemClock
from ha.election.settings import ElectionSettings
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


@pytest.mark.postgres
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
            await eventually(lambda: _grants(peer))
            waited_s = CLOCK.boottime_s() - started_s
            if fault == signal.SIGKILL:
                assert waited_s < 0.5
            else:
                assert SETTINGS.lease_s - SETTINGS.heartbeat_s - 0.1 <= waited_s < SETTINGS.lease_s + 0.5
                os.kill(process.pid, signal.SIGCONT)
                _, errors = await asyncio.wait_for(process.communicate(), 10)
                assert b"HA_LOCK_LOST" in errors
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
