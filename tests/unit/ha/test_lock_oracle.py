"""The lock session on Oracle, against the double: the contract, then each answer and error of Oracle's manuals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import oracledb
import pytest
import uvloop

from ha.errors import (
    DatabaseNotPrepared,
    HaError,
    LockLost,
    LockUnavailable,
    NoServerLease,
    PoolerDetected,
    ReadOnlyServer,
    ScopeMismatch,
)
from ha.invariant import InvariantBroken
from ha.lock.ids import Counter, lock_id
from ha.lock.interface import DatabaseIdentity, ReleaseNote, ServerLease
from ha.lock.oracle import OracleLockSession, server_lease
from ha.lock.oracle_connection import OracleConnection
from tests.contracts.lock_contract import CLOCK, SETTINGS, LockContract, World
from tests.contracts.lock_machine import LockMachine, LockWorld, lock_world, memory_world
from tests.contracts.side_by_side import played
from tests.oracle import driver
from tests.oracle.server import (
    CONTACT_LOST,
    ENDED,
    IDLE,
    KILLED,
    LOCK_TIMEOUT,
    NO_PACKAGE,
    NO_TABLE,
    NOT_LOGGED_ON,
    OracleServer,
)

LOGIN = {"user": "notary", "password": "secret", "dsn": "db-1:1521/notary"}
SCOPE = "NOTARY"
pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy")
NUMBER = lock_id(SCOPE, Counter.PARTICIPANT_WRITE)
CHECKS = ["lock.check", *["lock.prepare"] * 3, "lock.profile", "lock.parameters", "lock.release", "lock.look"]


@pytest.fixture(scope="module")
def event_loop_policy() -> asyncio.AbstractEventLoopPolicy:
    """The loop that the replicas run on; the driver's transport is the loop's."""
    policy: asyncio.AbstractEventLoopPolicy = uvloop.EventLoopPolicy()
    return policy


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OracleServer]:
    made = OracleServer(CLOCK, tmp_path)
    driver.install(monkeypatch, made)
    yield made
    assert made.breaks == 0, "a statement was cancelled"


def session_on(name: str = "R1", scope: str | None = None) -> OracleLockSession:
    return OracleLockSession(LOGIN, scope=scope or SCOPE, name=name, settings=SETTINGS, clock=CLOCK)


async def opened(name: str = "R1") -> OracleLockSession:
    session = session_on(name)
    await session.open()
    return session


@pytest.fixture
def world(server: OracleServer) -> Iterator[World]:
    server._idle_limit_s = SETTINGS.lease_s

    async def kill(session: Any) -> None:
        server.end(server.session_of(session.name), KILLED)

    async def stall(connection: OracleConnection) -> None:
        server.stalled.add("stall")
        await connection.run("/* ha.stall */ UPDATE participant SET epoch = epoch", {})

    async def nothing(connection: OracleConnection) -> None:
        await connection.rows("/* ha.nothing */ SELECT dummy FROM dual")

    server._answers["stall"] = lambda session, values: None
    with World(session_on, kill, stall, nothing).watched() as made:
        yield made


class TestOracleLock(LockContract):
    """See LockContract."""


def test_it_answers_as_the_double_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: see LockMachine. Method: random calls."""

    @asynccontextmanager
    async def world() -> AsyncIterator[LockWorld]:
        made = OracleServer(CLOCK, tmp_path)
        driver.install(monkeypatch, made)

        async def kill(session: Any) -> None:
            made.end(made.session_of(session.name), KILLED)

        async def nothing(connection: OracleConnection) -> None:
            await connection.rows("/* ha.nothing */ SELECT dummy FROM dual")

        async with lock_world(World(session_on, kill, nothing, nothing)) as opened_on:
            yield opened_on

    played(partial(LockMachine, memory_world, world), examples=20, steps=40)


# ---- calls and binds ----


async def test_the_lock_is_asked_for_as_the_contract_says(server: OracleServer) -> None:
    """Goal: exclusive, at once or not at all, kept by a commit, the published id. Method: the recorded call."""
    session = await opened()
    await session.try_lock()
    (call,) = server.named("lock.request")
    assert "lockmode => 6, timeout => 0, release_on_commit => FALSE" in call.text
    assert call.rows == [{"id": NUMBER}]
    assert 0 <= NUMBER <= 1_073_741_823
    assert not call.commit
    await session.close()


async def test_the_session_is_dedicated_and_never_cancels_by_itself(
    server: OracleServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: no pool, no retry behind our back, no call_timeout. Method: the arguments and the first statements."""
    asked = driver.install(monkeypatch, server)
    session = await opened()
    assert asked == [
        {
            **LOGIN,
            "server_type": "dedicated",
            "tcp_connect_timeout": SETTINGS.connect_max_s,
            "retry_count": 0,
            "expire_time": 1,
        }
    ]
    assert [call.name for call in server.calls] == CHECKS
    assert "COMMIT_WAIT = FORCE_WAIT" in server.named("lock.prepare")[0].text
    assert server.session_of("R1").sid == 101
    await session.close()


async def test_a_heartbeat_is_one_call(server: OracleServer) -> None:
    """Goal: the held check costs one round trip, and asks the lock itself. Method: count calls around a confirm."""
    session = await opened()
    await session.try_lock()
    before = len(server.calls)
    await session.confirm()
    assert [call.name for call in server.calls[before:]] == ["lock.request"]
    await session.close()


async def test_a_release_is_noted_before_the_lock_is_free(server: OracleServer) -> None:
    """Goal: who finds the lock free finds the note, who came later does not. Method: look before, between and after."""
    session, peer = await opened("R1"), await opened("R2")
    await session.try_lock()
    before = len(server.calls)
    server.failures["lock.release"] = [LOCK_TIMEOUT]  # the note is written, and the session ends
    with pytest.raises(LockLost):
        await session.release()
    assert [call.name for call in server.calls[before:]] == ["lock.note", "lock.release"]
    assert "COMMIT" in server.named("lock.note")[0].text
    assert (await peer.look()).released == ReleaseNote("R1", None)
    late = await opened("R3")
    assert (await late.look()).released is None
    for each in (peer, late):
        await each.close()


async def test_a_note_is_news_although_its_writer_still_holds_the_lock(server: OracleServer) -> None:
    """Goal: a peer that looks between note and release finds both. Method: look there; then at a new session."""
    holder, peer = await opened("R1"), await opened("R2")
    await holder.try_lock()
    server._note(server.session_of("R1"), {"id": NUMBER, "name": "R1", "peer": "R3"})
    assert (await peer.look()).owner is not None
    third = await opened("R3")
    await holder.close()
    for each in (peer, third):
        assert (await each.look()).released == ReleaseNote("R1", "R3")
    again = await opened("R1")  # the same replica in another session: its old note does not concern this one
    await again.try_lock()
    assert not (await peer.look()).free
    server.end(server.session_of("R1"), KILLED)
    assert (await peer.look()).released is None
    for each in (peer, third, again):
        await each.close()


async def test_a_release_for_one_replica_names_it(server: OracleServer) -> None:
    """Goal: the others let it go first. Method: hand over to R3; what a peer receives."""
    session, peer = await opened("R1"), await opened("R2")
    await session.try_lock()
    await session.release(to="R3")
    assert server.named("lock.note")[0].rows == [{"id": NUMBER, "name": "R1", "peer": "R3"}]
    assert (await peer.look()).released == ReleaseNote("R1", "R3")
    for each in (session, peer):
        await each.close()


async def test_the_identity_names_the_database_and_its_incarnation(server: OracleServer) -> None:
    """Goal: two primaries of one database differ in the barrier. Method: DBID and RESETLOGS_CHANGE#."""
    session = await opened()
    identity = await session.database_identity()
    assert identity == DatabaseIdentity("oracle", "4711", 925702)
    assert str(identity) == "oracle:4711:925702"
    await session.close()


# ---- what DBMS_LOCK answers ----


@pytest.mark.parametrize(
    ("result", "expected"),
    [(0, True), (1, False), (2, LockLost), (3, InvariantBroken), (4, True), (5, InvariantBroken)],
)
async def test_each_answer_to_asking_for_the_lock(
    server: OracleServer, result: int, expected: bool | type[Exception]
) -> None:
    """Goal: granted, busy, or an error, never guessed. Method: every return code of DBMS_LOCK.REQUEST."""
    session = await opened()
    server.results["request"] = [result]
    if isinstance(expected, bool):
        assert (await session.try_lock()).granted is expected
        await session.close()
        return
    with pytest.raises(expected, match=f"DBMS_LOCK answered {result}"):
        await session.try_lock()
    assert session.closed


@pytest.mark.parametrize(
    ("result", "expected"),
    [(0, LockLost), (1, LockLost), (2, LockLost), (3, InvariantBroken), (4, None), (5, InvariantBroken)],
)
async def test_each_answer_to_the_held_check(
    server: OracleServer, result: int, expected: type[Exception] | None
) -> None:
    """Goal: only "already own" confirms; a lock that is granted now was not held. Method: every return code."""
    session = await opened()
    await session.try_lock()
    server.results["request"] = [result]
    if expected is None:
        await session.confirm()
        await session.close()
        return
    with pytest.raises(expected):
        await session.confirm()
    assert session.closed
    assert server.locks == {}


@pytest.mark.parametrize(("result", "expected"), [(0, None), (3, InvariantBroken), (4, None), (5, InvariantBroken)])
async def test_each_answer_to_a_release(server: OracleServer, result: int, expected: type[Exception] | None) -> None:
    """Goal: a lock that is gone already is released. Method: every return code of DBMS_LOCK.RELEASE."""
    session = await opened()
    await session.try_lock()
    server.results["release"] = [result]
    if expected is None:
        await session.release()
    else:
        with pytest.raises(expected):
            await session.release()
    await session.close()


# ---- errors ----

DEATHS = [KILLED, NOT_LOGGED_ON, IDLE, ENDED, CONTACT_LOST]


@pytest.mark.parametrize("death", DEATHS, ids=lambda death: f"ORA-{death[0]:05}")
@pytest.mark.parametrize("question", ["try_lock", "look", "confirm", "release", "database_identity"])
async def test_a_session_that_the_server_ended_is_lost(
    server: OracleServer, death: tuple[int, str], question: str
) -> None:
    """Goal: killed, idle, crashed or cut off: LockLost with Oracle's own words. Method: each death at each question."""
    session, peer = await opened("R1"), await opened("R2")
    if question in ("confirm", "release"):
        await session.try_lock()
    server.end(server.session_of("R1"), death)
    with pytest.raises(LockLost, match=f"ORA-{death[0]:05}") as lost:
        await getattr(session, question)()
    assert lost.value.retry
    assert session.closed
    assert (await peer.try_lock()).granted
    await peer.close()


@pytest.mark.parametrize("death", DEATHS, ids=lambda death: f"ORA-{death[0]:05}")
async def test_a_write_on_an_ended_session_is_lost(server: OracleServer, death: tuple[int, str]) -> None:
    """Goal: no write is applied silently. Method: each death under a statement of the store's."""
    session = await opened()
    server.end(server.session_of("R1"), death)
    with pytest.raises(LockLost, match=r"test\.write"):
        async with session.statement("test.write") as connection:
            await connection.run("UPDATE participant SET epoch = :epoch", {"epoch": 1})
    assert session.closed


@pytest.mark.parametrize("question", ["try_lock", "confirm", "release"])
async def test_a_package_that_is_being_patched_costs_the_session_and_is_worth_retrying(
    server: OracleServer, question: str
) -> None:
    """Goal: ORA-04021 shows nothing about the lock, so the session ends. Method: DBMS_LOCK cannot be locked for a
    call."""
    session, peer = await opened("R1"), await opened("R2")
    if question != "try_lock":
        await session.try_lock()
    server.failures["lock.release" if question == "release" else "lock.request"] = [LOCK_TIMEOUT]
    with pytest.raises(LockLost, match="ORA-04021") as lost:
        await getattr(session, question)()
    assert lost.value.retry
    assert session.closed
    assert (await peer.try_lock()).granted
    await peer.close()


async def test_an_answer_that_is_an_error_leaves_a_user_s_session_alive(server: OracleServer) -> None:
    """Goal: a definite error of the store's does not cost the lock. Method: a table that is not there, twice."""
    session = await opened()
    await session.try_lock()
    for _ in range(2):
        with pytest.raises(oracledb.DatabaseError):
            async with session.statement("test.missing") as connection:
                await connection.rows("SELECT a FROM missing")
    await session.confirm()
    await session.close()


async def test_a_transaction_left_open_closes_the_session(server: OracleServer) -> None:
    """Goal: no transaction outlives its block. Method: write, and leave; and fail behind a write."""
    for fails in (False, True):
        session = await opened()
        server.session_of("R1").tables.execute("CREATE TABLE IF NOT EXISTS note (n INTEGER)")
        with pytest.raises(LockLost):
            async with session.statement("test.open") as connection:
                await connection.run("INSERT INTO note (n) VALUES (:n)", {"n": 1})
                if fails:
                    raise KeyError("mine")
        assert session.closed


@pytest.mark.parametrize("name", dict.fromkeys(CHECKS))
@pytest.mark.parametrize("failure", [KILLED, ENDED, CONTACT_LOST, LOCK_TIMEOUT], ids=lambda f: f"ORA-{f[0]:05}")
async def test_any_failure_while_opening_is_worth_retrying(
    server: OracleServer, name: str, failure: tuple[int, str]
) -> None:
    """Goal: a replica keeps trying. Method: each failure at each of the first statements."""
    server.failures[name] = [failure]
    session = session_on()
    with pytest.raises(LockUnavailable, match=f"ORA-{failure[0]:05}") as refused:
        await session.open()
    assert refused.value.retry
    assert session.closed
    await (await opened()).close()


@pytest.mark.parametrize(
    ("name", "failure"),
    [("lock.check", NO_TABLE), ("lock.look", NO_TABLE), ("lock.release", NO_PACKAGE), ("lock.release", (1031, "no"))],
)
async def test_a_missing_right_or_table_is_named_at_start(
    server: OracleServer, name: str, failure: tuple[int, str]
) -> None:
    """Goal: a person learns what to grant before anything is served. Method: V$ views, our table, DBMS_LOCK."""
    server.failures[name] = [failure]
    session = session_on()
    with pytest.raises(DatabaseNotPrepared, match="notary store roles") as refused:
        await session.open()
    assert not refused.value.retry
    assert session.closed


async def test_a_server_that_cannot_be_reached_is_worth_retrying(server: OracleServer) -> None:
    """Goal: a refused connection is LockUnavailable. Method: a listener that does not know the service."""
    server.accepts = False
    session = session_on()
    with pytest.raises(LockUnavailable, match="ORA-12514") as refused:
        await session.open()
    assert refused.value.retry


# ---- checks at start ----


@pytest.mark.parametrize(
    ("attribute", "value", "error"),
    [
        ("user", "SOMEBODY", ScopeMismatch),
        ("schema", "ELSEWHERE", ScopeMismatch),
        ("proxy", "TDM", PoolerDetected),
        ("server_process", "POOLED", PoolerDetected),
        ("server_process", "SHARED", PoolerDetected),
        ("sid_shift", 1, PoolerDetected),
        ("role", "PHYSICAL STANDBY", ReadOnlyServer),
        ("role", "SNAPSHOT STANDBY", ReadOnlyServer),
        ("open_mode", "READ ONLY WITH APPLY", ReadOnlyServer),
    ],
)
async def test_what_must_not_lead_is_refused(
    server: OracleServer, attribute: str, value: object, error: type[HaError]
) -> None:
    """Goal: no leading for another user, through a pool, or on a standby. Method: one answer at a time."""
    setattr(server, attribute, value)
    session = session_on()
    with pytest.raises((error, LockUnavailable)) as refused:
        await session.open()
    assert isinstance(refused.value, error) or isinstance(refused.value.__cause__, error)
    assert session.closed
    assert server.locks == {}


async def test_a_demoted_primary_is_noticed_by_the_heartbeat(server: OracleServer) -> None:
    """Goal: no leading from a database that became a standby. Method: a role change under a holder and a watcher."""
    session, peer = await opened("R1"), await opened("R2")
    await session.try_lock()
    server.role = "PHYSICAL STANDBY"
    for call in (session.confirm, peer.look):
        with pytest.raises(ReadOnlyServer):
            await call()
    assert session.closed
    assert peer.closed


async def test_a_clock_that_is_off_is_seen(server: OracleServer) -> None:
    """Goal: skew has the right sign and size. Method: a database two seconds ahead."""
    server.ahead_s = 2.0
    session = await opened()
    assert session.clock_skew_s == pytest.approx(-2.0, abs=0.05)
    await session.close()


TRUE = {"resource_limit": "TRUE", "max_idle_time": "0"}


@pytest.mark.parametrize(
    ("idle_time", "parameters", "frees_after_s", "verified"),
    [
        ("1", TRUE, 60.0, True),
        ("UNLIMITED", TRUE | {"max_idle_time": "2"}, 120.0, True),
        ("5", TRUE | {"max_idle_time": "2"}, 120.0, True),
        ("5", {"resource_limit": "FALSE", "max_idle_time": "3"}, 180.0, True),
        ("1", None, 60.0, False),
        ("UNLIMITED", None, None, False),
        (None, None, None, False),
    ],
)
def test_the_server_s_lease_is_the_shortest_idle_limit_in_force(
    idle_time: str | None, parameters: dict[str, str] | None, frees_after_s: float | None, verified: bool
) -> None:
    """Goal: what frees a frozen holder is known, or reported as unknown. Method: profile and parameters, pure."""
    lease = server_lease(idle_time, parameters, 3.0)
    assert (lease.frees_after_s, lease.verified) == (frees_after_s, verified)
    assert "SQLNET.EXPIRE_TIME not verified" in lease.detail
    assert verified or "MAX_IDLE_TIME not verified" in lease.detail


@pytest.mark.parametrize(
    ("idle_time", "parameters", "lease_s"),
    [
        ("UNLIMITED", TRUE, 3.0),
        ("1", {"resource_limit": "FALSE", "max_idle_time": "0"}, 3.0),
        ("1", TRUE, 61.0),
        ("1", None, 61.0),
    ],
)
def test_no_lease_or_one_that_is_too_short_is_refused(
    idle_time: str, parameters: dict[str, str] | None, lease_s: float
) -> None:
    """Goal: a frozen holder loses the lock some day, and not while it still claims it. Method: pure."""
    with pytest.raises(NoServerLease) as refused:
        server_lease(idle_time, parameters, lease_s)
    assert not refused.value.retry


async def test_a_lease_that_may_not_be_read_is_said_not_to_be_verified(server: OracleServer) -> None:
    """Goal: a missing grant is no guess. Method: no right to read V$PARAMETER."""
    server.failures["lock.parameters"] = [NO_TABLE]
    session = session_on()
    assert session.server_lease == ServerLease(None, False, "not connected")
    await session.open()
    assert session.server_lease.frees_after_s == 60.0
    assert not session.server_lease.verified
    await session.close()


async def test_a_server_without_a_lease_is_refused(server: OracleServer) -> None:
    """Goal: fail closed, with what to set. Method: no idle limit anywhere."""
    server.idle_time = "UNLIMITED"
    session = session_on()
    with pytest.raises(NoServerLease, match="MAX_IDLE_TIME"):
        await session.open()
    assert session.closed


# ---- the real driver ----


async def test_a_caller_that_is_cancelled_costs_the_connection_and_no_statement(server: OracleServer) -> None:
    """Goal: the socket is closed at once, the driver's call ends by itself. Method: cancel a call without an answer."""
    connection = await OracleConnection.connect(LOGIN)
    server.stalled.add("stall")
    server._answers["stall"] = lambda session, values: None
    call = asyncio.create_task(connection.run("/* ha.stall */ BEGIN NULL; END;", {}))
    while not server.named("stall"):
        await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert server.sessions[-1].ended == ENDED
    assert not connection.settled()
    assert connection.answers == 0


async def test_the_real_driver_s_socket_closes_while_it_waits() -> None:
    """Goal: hanging up reaches python-oracledb's own socket. Method: a listener that accepts and never answers."""
    heard: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    asked = asyncio.Event()

    async def listener(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await reader.read(65_536)
        asked.set()
        heard.set_result(first + await reader.read())
        writer.close()

    silent = await asyncio.start_server(listener, "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    login = LOGIN | {"dsn": f"127.0.0.1:{port}/notary"}
    session = OracleLockSession(login, scope=SCOPE, name="R1", settings=SETTINGS, clock=CLOCK)
    opening = asyncio.create_task(session.open())
    await asyncio.wait_for(asked.wait(), 10)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert b"SERVICE_NAME=notary" in await asyncio.wait_for(heard, 10)
    assert session.closed
    silent.close()
