"""Lock session and participant store on a real Oracle: the same contracts as on Postgres and on the double.

NOTARY_TEST_ORACLE names the database, `oracle://USER:PASSWORD@HOST:PORT/SERVICE`; so does `make test-oracle DSN=...`.
The user has the rights of `notary store roles`, an idle limit, and ALTER SYSTEM for the tests that kill a session.
**Everything in its schema is dropped.** Without a name every test here is skipped with a reason.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import oracledb
import pytest
import uvloop

from ha.clock import SystemClock
from ha.lock.ids import Counter, lock_id
from ha.lock.oracle import OracleLockSession
from ha.lock.oracle_connection import OracleConnection
from ha.settings import ElectionSettings
from replica.store.oracle.export import export_completions
from replica.store.oracle.login import parse_oracle
from replica.store.oracle.migrate import migrate, newest_version
from replica.store.oracle.status import read_status
from replica.store.oracle.store import OracleStore
from replica.store.schema import read_migrations
from tests.contracts.lock_contract import CLOCK, SETTINGS, LockContract, World
from tests.contracts.store_contract import (
    REJECTED,
    TOPIC,
    NewStore,
    StoreContract,
    activated,
    command,
    completion,
    publish,
)

VARIABLE = "NOTARY_TEST_ORACLE"
STALL_S = 2.0  # the server minds no closed socket while it works
pytestmark = [
    pytest.mark.oracle,
    pytest.mark.skipif(VARIABLE not in os.environ, reason=f"NO ORACLE: nothing here was tested; set {VARIABLE}"),
    pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy"),
]


@pytest.fixture(scope="module")
def event_loop_policy() -> asyncio.AbstractEventLoopPolicy:
    """The loop that the replicas run on."""
    policy: asyncio.AbstractEventLoopPolicy = uvloop.EventLoopPolicy()
    return policy


@pytest.fixture(scope="module")
def login() -> dict[str, str]:
    return parse_oracle(os.environ[VARIABLE])


@pytest.fixture(scope="module")
def user(login: dict[str, str]) -> str:
    """The user as the server writes it."""
    ((name,),) = ask(login, "SELECT SYS_CONTEXT('USERENV', 'SESSION_USER') FROM dual")
    return str(name)


@pytest.fixture
async def schema(login: dict[str, str], user: str) -> None:
    """A new schema in the user's own."""
    query = "SELECT object_type, object_name FROM user_objects WHERE object_type IN ('VIEW', 'TABLE')"
    for kind, name in ask(login, query):
        ask(login, f'DROP {kind} "{name}"' + (" CASCADE CONSTRAINTS PURGE" if kind == "TABLE" else ""))
    await migrate(login, lock_id(user, Counter.NODE_MIGRATIONS))


def ask(login: dict[str, str], text: str, **values: Any) -> list[tuple[Any, ...]]:
    """One statement on a connection of its own."""
    with oracledb.connect(**login) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute(text, values, fetch_lobs=False)
        return cursor.fetchall() if cursor.description else []


@pytest.fixture
def world(login: dict[str, str], user: str, schema: None) -> Iterator[World]:
    async def kill(session: Any) -> None:
        query = "SELECT sid, serial#, inst_id FROM gv$session WHERE client_identifier = :name AND username = :username"
        for sid, serial, instance in ask(login, query, name=session.name, username=user):
            ask(login, f"ALTER SYSTEM KILL SESSION '{sid},{serial},@{instance}' IMMEDIATE")

    async def stall(connection: OracleConnection) -> None:
        await connection.run(f"BEGIN DBMS_SESSION.SLEEP({STALL_S}); END;", {})

    async def nothing(connection: OracleConnection) -> None:
        await connection.rows("SELECT dummy FROM dual")

    def session(name: str, scope: str = user) -> Any:
        return OracleLockSession(login, scope=scope, name=name, settings=SETTINGS, clock=CLOCK)

    with World(session, kill, stall, nothing, lease_s=60.0, same_clock=False).watched() as made:
        yield made


class TestOracleLock(LockContract):
    """See LockContract."""


@pytest.fixture
async def opened() -> AsyncIterator[list[OracleLockSession]]:
    made: list[OracleLockSession] = []
    yield made
    for session in made:
        await session.close()


@pytest.fixture
def new_store(login: dict[str, str], user: str, schema: None, opened: list[OracleLockSession]) -> NewStore:
    async def make() -> OracleStore:
        session = OracleLockSession(login, scope=user, name="r1", settings=ElectionSettings(), clock=SystemClock())
        await session.open()
        opened.append(session)
        return OracleStore(session)

    return make


class TestOracleStore(StoreContract):
    """See StoreContract."""


async def test_the_lock_is_the_published_one(world: World, login: dict[str, str], user: str) -> None:
    """Goal: GV$LOCK shows a user lock of the published id, exclusive. Method: look as another session."""
    session = world.session("R1")
    await session.open()
    await session.try_lock()
    rows = ask(login, "SELECT id1, id2, lmode FROM gv$lock WHERE type = 'UL' AND lmode > 1")
    assert (lock_id(user, Counter.PARTICIPANT_WRITE), 0, 6) in rows
    assert session.server_lease.frees_after_s is not None
    await session.close()


@pytest.mark.parametrize("way", ["deadline", "cancelled", "closed"])
async def test_a_statement_is_never_cancelled(world: World, login: dict[str, str], way: str) -> None:
    """Goal: a write in flight ends by itself. Method: a write that outlives us, three ways to leave it; is it there?"""
    ask(login, "CREATE TABLE fate (n NUMBER(1))")
    session = world.session("R1")
    await session.open()

    async def write() -> None:
        async with session.statement("test.write") as connection:
            await connection.run(
                "BEGIN DBMS_SESSION.SLEEP(1); INSERT INTO fate (n) VALUES (1); COMMIT; END;", {}, commit=True
            )

    task = asyncio.create_task(write())
    await asyncio.sleep(0.2)
    if way == "cancelled":
        task.cancel()
    elif way == "closed":
        await session.close()
    await asyncio.gather(task, return_exceptions=True)
    assert session.closed
    await asyncio.sleep(2)
    assert ask(login, "SELECT n FROM fate") == [(1,)]


async def test_every_field_is_stored_as_it_was(new_store: NewStore, login: dict[str, str]) -> None:
    """Goal: long parties, large and empty details come back. Method: publish, read by the export."""
    store = await activated(new_store)
    parties = tuple(f"CN={number:03}{'é' * 250}" for number in range(16))
    details = [b"", b"x", b"y" * 3_000, b"z" * 2_000_000]
    done = [completion(command(n), n, REJECTED, detail=detail) for n, detail in enumerate(details, 1)]
    done = [msgspec.structs.replace(each, act_as=parties) for each in done]
    await publish(store, done, 9)
    with export_completions(login) as export:
        assert [found for _, found in export.rows] == done


async def test_status_and_migrations(new_store: NewStore, login: dict[str, str], user: str) -> None:
    """Goal: one look shows who leads and how far. Method: an activation; migrate again."""
    await activated(new_store)
    status = await read_status(login)
    assert (status.topic_id, status.epoch, status.schema_version) == (TOPIC, 1, newest_version())
    assert await migrate(login, lock_id(user, Counter.NODE_MIGRATIONS)) == []
    rows = ask(login, "SELECT version FROM schema_version WHERE applied_at IS NOT NULL")
    assert len(rows) == len(read_migrations("oracle"))
