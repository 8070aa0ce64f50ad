"""The participant store on a real Postgres, through real lock sessions."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.resources import files

import msgspec
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from ha.clock import SystemClock
from ha.election.settings import ElectionSettings
from ha.errors import LockLost
from ha.lock.ids import Counter, lock_id
from ha.lock.postgres import PostgresLockSession
from replica.local.postgres import PostgresServer
from replica.notary.errors import InvariantBroken, StoreMismatch, StoreUnavailable
from replica.notary.position import encode_position
from replica.store import migrate as migrations
from replica.store.board import postgres_board
from replica.store.bulletin import Bulletin
from replica.store.export import published_state
from replica.store.interface import NOTARISED, Command, Completion, ParticipantStore
from replica.store.memory import MemoryDatabase
from replica.store.migrate import migrate
from replica.store.postgres import PostgresStore, named_statement
from replica.store.reader import CompletionReader, open_reader
from replica.store.schema import Migration
from replica.store.status import read_status
from tests.integration.conftest import MakeDatabase
from tests.unit.reader_contract import (
    InFlightByCompletionsContract,
    PruningContract,
    ReaderContract,
    publish_over_time,
    publish_some,
)
from tests.unit.store_contract import (
    FRESH,
    IN_FLIGHT,
    REJECTED,
    TOPIC,
    Ends,
    NewStore,
    StoreContract,
    accepted,
    activated,
    at,
    command,
    completion,
    in_order,
    serving,
)
from tests.waiting import eventually

pytestmark = pytest.mark.postgres

MIGRATION_LOCK = lock_id("test", Counter.NODE_MIGRATIONS)


@pytest.fixture
async def dsn(make_database: MakeDatabase) -> str:
    """A new database with the schema."""
    made = await make_database()
    await migrate(made, MIGRATION_LOCK)
    return made


@asynccontextmanager
async def sessions(dsn: str) -> AsyncIterator[list[PostgresLockSession]]:
    """A list that lock sessions are added to; closed at the end."""
    opened: list[PostgresLockSession] = []
    try:
        yield opened
    finally:
        for session in opened:
            await session.close()


async def open_session(dsn: str, opened: list[PostgresLockSession], **settings: float) -> PostgresLockSession:
    scope = conninfo_to_dict(dsn)["dbname"]
    session = PostgresLockSession(
        dsn, scope=str(scope), name="r1", settings=ElectionSettings(**settings), clock=SystemClock()
    )
    await session.open()
    opened.append(session)
    return session


@pytest.fixture
async def opened(dsn: str) -> AsyncIterator[list[PostgresLockSession]]:
    async with sessions(dsn) as made:
        yield made


@pytest.fixture
def new_store(dsn: str, opened: list[PostgresLockSession]) -> NewStore:
    async def make() -> ParticipantStore:
        return PostgresStore(await open_session(dsn, opened))

    return make


@asynccontextmanager
async def looking(dsn: str) -> AsyncIterator[psycopg.AsyncConnection[tuple[object, ...]]]:
    """An ordinary connection, to look at the tables or to do harm."""
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        yield connection


async def rows(dsn: str, query: str) -> list[tuple[object, ...]]:
    async with looking(dsn) as connection:
        return await (await connection.execute(query.encode())).fetchall()


@pytest.fixture
def ends(dsn: str) -> Ends:
    async def read() -> dict[int, tuple[str | None, str | None]]:
        async with postgres_board(dsn, "test") as board:
            return {reign.epoch: (reign.end_reason, reign.found_over_by) for reign in await board.history(10)}

    return read


class TestPostgresStore(StoreContract):
    """See StoreContract."""


@pytest.fixture
async def reader(dsn: str) -> AsyncIterator[CompletionReader]:
    reader = open_reader(dsn)
    yield reader
    await reader.close()


class TestPostgresReader(ReaderContract, PruningContract, InFlightByCompletionsContract):
    """See ReaderContract, PruningContract and InFlightByCompletionsContract."""


async def test_a_page_of_large_conflicts_is_bounded_in_bytes(new_store: NewStore, reader: CompletionReader) -> None:
    """Goal: no page fills the memory. Method: details of 1 MB and of nothing, read page by page."""
    store = await serving(new_store)
    details = [b"x" * 1_000_000] * 6 + [b""] * 600
    for n, detail in enumerate(details):
        await store.publish([completion(command(n), n, REJECTED, detail=detail)], at(n))
    sizes, after = [], 0
    while after < len(details):
        page = await reader.read(after, len(details))
        sizes.append(len(page))
        after = page[-1][0]
    assert sizes == [4, 500, 102]


async def test_the_published_state_is_that_of_the_store(new_store: NewStore, dsn: str) -> None:
    """Goal: an audit starts from what the active published. Method: nothing yet, then one completion."""
    assert published_state(dsn).position is None
    store = await serving(new_store)
    await store.publish([completion(command(1), 7)], at(7))
    state = published_state(dsn)
    assert (state.topic_id, state.ledger_end) == (TOPIC, 1)
    assert state.position == encode_position(at(7))


async def test_a_reader_cannot_write(reader: CompletionReader, dsn: str) -> None:
    """Goal: what reads for the API never changes anything. Method: its own connection, an ordinary statement."""
    assert await reader.first_at(0, 0) == 1
    connection = reader._connection  # type: ignore[attr-defined]
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        await connection.execute("UPDATE participant SET epoch = 99")


async def test_a_reader_comes_back_after_its_server_ended_it(
    new_store: NewStore, reader: CompletionReader, dsn: str
) -> None:
    """Goal: an error is said once and does not last. Method: end the server's side, read twice."""
    await publish_some(new_store)
    await reader.read(0, 3)
    await rows(dsn, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'notary-feed'")
    with pytest.raises(StoreUnavailable):
        await reader.read(0, 3)
    assert len(await reader.read(0, 3)) == 3


async def test_every_field_is_stored_as_it_was(new_store: NewStore, dsn: str) -> None:
    """Goal: what the log says is what the table says. Method: awkward texts and bytes, read back by SQL."""
    store = await serving(new_store)
    of = msgspec.structs.replace(command(1), user_id='é{}",\\ NULL', submission_id="NULL", act_as=("one",))
    await store.admit([of], 0)
    assert await (await activated(new_store)).pending(1) == [of]
    done = completion(of, 7, REJECTED, recorded_us=2**62, detail=bytes(range(256)))
    await store.publish([done], at(7))
    ((ledger_offset, *fields),) = await rows(dsn, "SELECT * FROM completion")
    assert ledger_offset == 1
    fields[4] = tuple(fields[4])  # type: ignore[arg-type]
    assert Completion(*fields) == done  # type: ignore[arg-type]


async def test_what_is_below_the_bound_is_deleted_and_nothing_else(
    new_store: NewStore, reader: CompletionReader, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: deleting is house-keeping below a bound that is there already. Method: chunks, twice; what is left."""
    from replica.store import prune
    from replica.store.export import export_completions

    monkeypatch.setattr(prune, "CHUNK_ROWS", 2)
    store = await publish_over_time(new_store)
    told: list[int] = []
    assert await prune.delete_pruned(dsn, told.append) == 0
    await store.prune(5, 10**9)
    assert await prune.delete_pruned(dsn, told.append) == 5
    assert await prune.delete_pruned(dsn, told.append) == 0
    assert told == [2, 4, 5]
    assert await rows(dsn, "SELECT min(ledger_offset), count(*) FROM completion") == [(6, 5)]
    assert await rows(dsn, "SELECT min(ledger_offset), count(*) FROM command_accepted") == [(6, 5)]
    assert await store.admit([command(6), command(5)], 0) == [accepted(6), FRESH]
    assert await reader.first_at(3, 10) == 6
    with export_completions(dsn) as export:
        assert (export.pruned_to, [offset for offset, _ in export.rows]) == (5, [6, 7, 8, 9, 10])


async def test_replicas_cannot_delete_what_was_published(dsn: str, postgres_server: PostgresServer) -> None:
    """Goal: the bound is moved by one login, rows are deleted by another. Method: the roles' rights, by the server."""
    name = str(conninfo_to_dict(dsn)["dbname"])
    await postgres_server.run_script(named_statement("roles"), name)
    for role, deletes, moves in (("notary_writer", False, True), ("notary_pruner", True, False)):
        delete = f"has_table_privilege('{role}', 'completion', 'DELETE')"
        move = f"has_column_privilege('{role}', 'participant', 'pruned_to', 'UPDATE')"
        assert await rows(dsn, f"SELECT {delete}, {move}") == [(deletes, moves)]


async def test_ten_thousand_states_of_conflict_fit(new_store: NewStore, dsn: str) -> None:
    """Goal: the largest completion is published. Method: a detail of 2 MB."""
    store = await serving(new_store)
    await store.publish([completion(command(1), 7, REJECTED, detail=b"x" * 2_000_000)], at(7))
    assert await rows(dsn, "SELECT length(detail) FROM completion") == [(2_000_000,)]


async def test_postgres_and_memory_agree(new_store: NewStore, dsn: str) -> None:
    """Goal: what is proved with the double holds for the product. Method: 150 random steps, a few commands, both."""
    chance = random.Random(7)
    memory = MemoryDatabase()
    memory.bind(TOPIC)
    store = await serving(new_store)
    memory.raise_epoch(0, "r")
    offset = 0
    for step in range(150):
        asked = [
            command(chance.randrange(12), tx=chance.randrange(3), submission=f"s{step}", submitted_us=step)
            for _ in range(chance.randrange(1, 5))
        ]
        since_us = chance.choice([0, 0, step * 10 - 100])
        assert await store.admit(asked, since_us) == memory.admit(asked, since_us)
        waiting = chance.sample(
            in_order(list(memory.in_flight.values())), k=min(len(memory.in_flight), chance.randrange(4))
        )
        done = []
        for of in waiting:
            offset += 1
            done.append(completion(of, offset, chance.choice([NOTARISED, REJECTED]), recorded_us=step * 10))
        offset += 1
        assert await store.publish(done, at(offset)) == memory.publish(done, at(offset))
        if step % 25 == 24:  # the replica is killed
            store = await activated(new_store)
            memory.raise_epoch(0, "r")
            left = memory.pending(100)
            assert await store.pending(100) == left
            offset += 1
            settled = [completion(of, offset, REJECTED, recorded_us=step * 10) for of in left]
            assert await store.publish(settled, at(offset)) == memory.publish(settled, at(offset))
            assert await store.pending(100) == []
    assert await store.published() == memory.published()
    stored = await rows(dsn, "SELECT ledger_offset, log_offset, submission_id, outcome FROM completion ORDER BY 1")
    assert stored == [(n, c.log_offset, c.submission_id, c.outcome) for n, c in memory.completions]


async def test_admissions_that_are_over_leave_no_rows(new_store: NewStore, dsn: str) -> None:
    """Goal: what an activation has to read stays small. Method: admit in batches, publish across them, look."""
    store = await serving(new_store)
    for first in (0, 3, 6):
        await store.admit([command(n) for n in range(first, first + 3)], 0)
    await store.publish([completion(command(n), n) for n in (0, 1, 2, 3, 8)], at(8))
    assert await rows(dsn, "SELECT number FROM admission ORDER BY 1") == [(2,), (3,)]
    assert await rows(dsn, "SELECT count(*) FROM command_in_flight") == [(4,)]
    await store.admit([command(9), command(10)], 0)
    await store.publish([completion(command(9), 9)], at(9))
    await store.publish([completion(command(10), 10)], at(10))
    assert await rows(dsn, "SELECT number FROM admission ORDER BY 1") == [(2,), (3,)]
    next_active = await activated(new_store)
    assert await next_active.pending(10) == in_order([command(n) for n in (4, 5, 6, 7)])
    await next_active.publish([completion(command(n), 11, REJECTED) for n in (4, 5, 6, 7)], at(11))
    assert await next_active.pending(10) == []
    assert await next_active.admit([command(4)], 0) == [FRESH]
    await next_active.publish([], at(12))
    assert await rows(dsn, "SELECT number FROM admission") == [(4,)]


async def test_a_killed_session_leaves_each_statement_whole_or_undone(dsn: str) -> None:
    """Goal: no half of a publication. Method: end the server's side at random moments, 15 times."""
    chance = random.Random(3)
    number = 0
    async with sessions(dsn) as opened:
        for _ in range(15):
            session = await open_session(dsn, opened)
            store = PostgresStore(session)

            async def make(store: PostgresStore = store) -> PostgresStore:
                return store

            await activated(make)
            before = await store.published()
            offset = before.position.offset if before.position else -1
            while lost := await store.pending(1_000):
                offset += 1
                await store.publish([completion(of, offset, REJECTED) for of in lost], at(offset))
            ((pid,),) = await rows(dsn, "SELECT pid FROM pg_stat_activity WHERE application_name = 'r1'")
            killer = asyncio.create_task(_terminate(dsn, pid, chance.random() * 0.02))
            with pytest.raises(LockLost):
                while True:
                    batch = [command(number + n) for n in range(200)]
                    number += 200
                    await store.admit(batch, 0)
                    offset += 1
                    await store.publish([completion(of, offset) for of in batch], at(offset))
            await killer
            ((ledger_end, highest, count, published, newest),) = await rows(
                dsn,
                "SELECT ledger_end, (SELECT coalesce(max(ledger_offset), 0) FROM completion),"
                " (SELECT count(*) FROM completion), published_offset,"
                " (SELECT max(log_offset) FROM completion) FROM participant",
            )
            assert ledger_end == highest == count
            assert published == (-1 if newest is None else newest)


async def _terminate(dsn: str, pid: object, after_s: float) -> None:
    async with looking(dsn) as connection:
        await asyncio.sleep(after_s)
        await connection.execute(b"SELECT pg_terminate_backend(%s)", (pid,))


async def test_a_statement_that_the_server_stops_ends_the_session(dsn: str) -> None:
    """Goal: an outcome that is unknown is said to be. Method: lock the table, so that a publication runs too long."""
    async with sessions(dsn) as opened, looking(dsn) as other:
        session = await open_session(dsn, opened, statement_max_s=0.3, heartbeat_s=0.5)
        store = PostgresStore(session)

        async def make() -> PostgresStore:
            return store

        await serving(make)
        async with other.transaction():
            await other.execute(b"LOCK TABLE completion")
            with pytest.raises(LockLost):
                await store.publish([completion(command(1), 1)], at(1))
        assert session.closed
        assert await rows(dsn, "SELECT published_offset, ledger_end FROM participant") == [(-1, 0)]


async def test_a_server_that_takes_no_writes_is_unavailable(new_store: NewStore, dsn: str) -> None:
    """Goal: a demoted primary is not taken for a bug. Method: make the session's transactions read-only."""
    store = await serving(new_store)
    async with store._session.statement("test") as connection:  # type: ignore[attr-defined]
        await connection.execute("SET default_transaction_read_only = on")
    with pytest.raises(StoreUnavailable):
        await store.admit([command(1)], 0)


async def test_statements_are_planned_by_key_also_when_tables_were_empty(new_store: NewStore, dsn: str) -> None:
    """Goal: a plan made for empty tables never scans full ones. Method: plan, fill behind the planner's back, run."""
    store = await serving(new_store)
    offset = 0
    async with looking(dsn) as other:
        await other.execute(b"ANALYZE")
        for n in range(8):  # past the number of runs after which Postgres keeps a plan
            offset += 1
            await store.admit([command(n)], 0)
            await store.publish([completion(command(n), offset)], at(offset))
        await other.execute(
            b"INSERT INTO command_accepted"
            b" SELECT sha256(('x' || n)::bytea), '', '', 0, 0, 0 FROM generate_series(1, 50000) n"
        )
        assert await store.admit([command(n) for n in range(100, 600)], 0) == [FRESH] * 500
        await store.publish([completion(command(n), offset + 1) for n in range(100, 600)], at(offset + 1))
        async with store._session.statement("test") as connection:  # type: ignore[attr-defined]
            await connection.execute("SELECT pg_stat_force_next_flush()")
            await connection.execute("SELECT")
        scans = await rows(dsn, "SELECT relname, seq_tup_read FROM pg_stat_user_tables WHERE relname LIKE 'com%'")
        assert dict(scans) == {"command_accepted": 0, "completion": 0}


async def test_ledger_offsets_come_from_no_sequence(dsn: str) -> None:
    """Goal: no gap by a rollback, no index that nobody needs. Method: the catalogue."""
    assert await rows(dsn, "SELECT count(*) FROM pg_class WHERE relkind = 'S'") == [(0,)]
    indexes = await rows(dsn, "SELECT indexname FROM pg_indexes WHERE tablename IN ('completion', 'command_accepted')")
    assert sorted(indexes) == [("command_accepted_pkey",), ("completion_pkey",)]


async def test_status_tells_people_where_things_are(new_store: NewStore, dsn: str) -> None:
    """Goal: one look says who leads and how far. Method: an activation, two commands, one published."""
    store = await serving(new_store)
    await store.admit([command(1), command(2)], 0)
    await store.publish([completion(command(1), 7)], at(7))
    status = await read_status(dsn)
    assert (status.topic_id, status.epoch, status.replica) == (TOPIC, 1, "r")
    assert (status.published_offset, status.ledger_end, status.in_flight) == (7, 1, 1)
    assert status.schema_version == migrations.newest_version()
    await activated(new_store)
    history = await rows(dsn, "SELECT epoch, replica, succeeded_at IS NULL FROM leader_history ORDER BY epoch")
    assert history == [(1, "r", False), (2, "r", True)]


# ---- what operators and replicas leave for one another ----


@asynccontextmanager
async def bulletin_of(dsn: str, replica: str) -> AsyncIterator[Bulletin]:
    bulletin = Bulletin(lambda name: postgres_board(dsn, name), replica)
    running = asyncio.create_task(bulletin.run())
    try:
        yield bulletin
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_pause_bars_everyone_but_the_keeper_until_it_is_over(
    new_store: NewStore, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: nobody takes over while operators work. Method: pause, a bulletin of each kind, resume."""
    monkeypatch.setattr("replica.store.bulletin.POLL_S", 0.02)
    async with postgres_board(dsn, "test") as board:
        assert await board.pause("nothing to keep yet") is None
        await activated(new_store)  # replica "r"
        assert await board.pause("new disks") == await board.paused()
        async with bulletin_of(dsn, "r") as keeper, bulletin_of(dsn, "r2") as other:
            assert keeper.is_barred()  # it has not looked yet
            await eventually(lambda: _is(lambda: not keeper.is_barred() and other.pause is not None))
            assert other.is_barred()
            ended = await board.resume()
            assert ended is not None
            assert (ended.keeper, ended.reason) == ("r", "new disks")
            await eventually(lambda: _is(lambda: not other.is_barred()))
        assert await board.resume() is None


async def test_the_end_of_a_reign_is_told_later_when_its_session_was_lost(
    new_store: NewStore, dsn: str, ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: the holder's own word arrives. Method: leave it while the database cannot be reached, then let it in."""
    monkeypatch.setattr("replica.store.bulletin.POLL_S", 0.02)
    await activated(new_store)
    async with bulletin_of("host=127.0.0.1 port=1", "r") as bulletin:
        bulletin.tell(1, "its session was lost")
        await eventually(lambda: _is(lambda: not bulletin.is_barred()))  # asked, no answer: it may run all the same
        monkeypatch.setattr(bulletin, "_open_board", lambda name: postgres_board(dsn, name))
        await eventually(lambda: _told(ends))
    async with postgres_board(dsn, "test") as board:
        (reign,) = await board.history(10)
    assert reign.ended_at is not None
    assert reign.ended_at > reign.granted_at


async def _told(ends: Ends) -> bool:
    return await ends() == {1: ("its session was lost", None)}


async def _is(holds: Callable[[], bool]) -> bool:
    return holds()


# ---- schema and rights ----


async def test_a_database_without_a_schema_says_what_to_do(make_database: MakeDatabase) -> None:
    """Goal: a forgotten migration is named. Method: bind to, and ask the status of, an empty database."""
    empty = await make_database()
    async with sessions(empty) as opened:
        with pytest.raises(StoreMismatch, match="notary store migrate"):
            await PostgresStore(await open_session(empty, opened)).bind(TOPIC)
    with pytest.raises(StoreMismatch):
        await read_status(empty)


async def test_migrations_are_applied_once_also_by_several_at_once(make_database: MakeDatabase) -> None:
    """Goal: replicas may all migrate at start. Method: four at a time, then one more."""
    dsn = await make_database()
    done = await asyncio.gather(*(migrate(dsn, MIGRATION_LOCK) for _ in range(4)))
    assert sorted(done) == [[], [], [], [m.name for m in migrations.migrations()]]
    assert await migrate(dsn, MIGRATION_LOCK) == []
    assert await rows(dsn, "SELECT count(*) FROM participant") == [(1,)]


async def test_a_migration_waits_for_another_but_not_for_ever(
    make_database: MakeDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: the wait is bounded. Method: hold the migration lock elsewhere."""
    dsn = await make_database()
    monkeypatch.setattr(migrations, "LOCK_WAIT_S", 0.2)
    async with looking(dsn) as other:
        await other.execute(b"SELECT pg_advisory_lock(%s)", (MIGRATION_LOCK,))
        with pytest.raises(StoreUnavailable):
            await migrate(dsn, MIGRATION_LOCK)
    assert await migrate(dsn, MIGRATION_LOCK) != []


async def test_a_failed_migration_leaves_nothing(make_database: MakeDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: all or nothing. Method: a second migration that fails, then without it."""
    dsn = await make_database()
    known = migrations.migrations()
    broken = Migration(999, "0999_broken.sql", 1, b"SELECT nonsense")
    monkeypatch.setattr(migrations, "migrations", lambda: (*known, broken))
    with pytest.raises(psycopg.errors.UndefinedColumn):
        await migrate(dsn, MIGRATION_LOCK)
    assert await rows(dsn, "SELECT to_regclass('participant')") == [(None,)]
    monkeypatch.undo()
    assert await migrate(dsn, MIGRATION_LOCK) == [m.name for m in known]


@pytest.mark.parametrize("usable_from", [1, 999])
async def test_a_newer_schema_is_used_only_if_it_says_so(dsn: str, usable_from: int) -> None:
    """Goal: replicas are replaced one by one. Method: a later release's migration that we can, or cannot, live with."""
    async with looking(dsn) as other:
        await other.execute(
            b"INSERT INTO schema_version (version, name, usable_from) VALUES (999, '0999_later.sql', %s)",
            (usable_from,),
        )
    async with sessions(dsn) as opened:
        store = PostgresStore(await open_session(dsn, opened))
        if usable_from == 1:
            await store.bind(TOPIC)
            assert await migrate(dsn, MIGRATION_LOCK) == []
            return
        with pytest.raises(StoreMismatch, match="999"):
            await store.bind(TOPIC)
    with pytest.raises(StoreMismatch, match="999"):
        await migrate(dsn, MIGRATION_LOCK)


async def test_an_older_schema_is_not_used(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: migrate first. Method: a release that knows one more migration."""
    monkeypatch.setattr("replica.store.postgres.newest_version", lambda: migrations.newest_version() + 1)
    async with sessions(dsn) as opened:
        with pytest.raises(StoreMismatch, match="notary store migrate"):
            await PostgresStore(await open_session(dsn, opened)).bind(TOPIC)


FORBIDDEN = [
    "UPDATE completion SET outcome = 'NOTARISED'",
    "DELETE FROM completion",
    "TRUNCATE completion",
    "DELETE FROM command_accepted",
    "DELETE FROM participant",
    "UPDATE participant SET ledger_id = gen_random_uuid()",
    "UPDATE epoch_grant SET replica = 'me'",
    "DELETE FROM epoch_grant",
    "UPDATE schema_version SET usable_from = 99",
    "DROP TABLE completion",
    "CREATE TABLE more (n int)",
]


async def test_a_replica_needs_no_more_than_the_writer_s_rights(dsn: str, postgres_server: PostgresServer) -> None:
    """Goal: a replica's credentials cannot rewrite history. Method: a login with the writer's role works, and tries."""
    database = str(conninfo_to_dict(dsn)["dbname"])
    async with looking(postgres_server.dsn(database)) as owner:
        script = files("replica.store").joinpath("sql/postgres/roles.sql").read_bytes()
        await owner.execute(script)
        await owner.execute(script)
        await owner.execute(f"GRANT CONNECT ON DATABASE {database} TO notary_reader".encode())
    for login, role in (("test_replica", "notary_writer"), ("test_person", "notary_reader")):
        await postgres_server.ensure_role(login, "pw")
        async with looking(postgres_server.dsn()) as owner:
            await owner.execute(f"GRANT {role} TO {login}".encode())
    writer, reader = (make_conninfo(dsn, user=user, password="pw") for user in ("test_replica", "test_person"))
    async with sessions(writer) as opened:
        store = PostgresStore(await open_session(writer, opened))

        async def make() -> PostgresStore:
            return store

        await serving(make)
        assert await store.admit([command(1)], 0) == [FRESH]
        assert await store.publish([completion(command(1), 7)], at(7)) == 1
        assert await store.admit([command(2), command(2)], 0) == [FRESH, IN_FLIGHT]
        assert await migrate(writer, MIGRATION_LOCK) == []
    for login in (writer, reader):
        for statement in FORBIDDEN:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                await rows(login, statement)
    assert (await read_status(reader)).ledger_end == 1
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        await rows(reader, "UPDATE participant SET epoch = 9")


async def test_a_login_without_rights_is_told_so(dsn: str, postgres_server: PostgresServer) -> None:
    """Goal: forgotten grants are named. Method: a login that may connect and nothing else."""
    database = str(conninfo_to_dict(dsn)["dbname"])
    await postgres_server.ensure_role("test_nobody", "pw")
    async with looking(postgres_server.dsn()) as owner:
        await owner.execute(f"GRANT CONNECT ON DATABASE {database} TO test_nobody".encode())
    nobody = make_conninfo(dsn, user="test_nobody", password="pw")
    async with sessions(nobody) as opened:
        with pytest.raises(StoreMismatch, match="grant the rights"):
            await PostgresStore(await open_session(nobody, opened)).bind(TOPIC)
    with pytest.raises(StoreMismatch):
        await read_status(nobody)


async def test_a_lost_participant_row_is_noticed(dsn: str) -> None:
    """Goal: an emptied table is no new ledger. Method: delete the row, then bind and ask the status."""
    await _delete_participant(dsn)
    async with sessions(dsn) as opened:
        with pytest.raises(StoreMismatch, match="backup"):
            await PostgresStore(await open_session(dsn, opened)).bind(TOPIC)
    with pytest.raises(StoreMismatch, match="backup"):
        await read_status(dsn)


async def _delete_participant(dsn: str) -> None:
    async with looking(dsn) as other:
        await other.execute(b"DELETE FROM participant")


async def test_an_id_of_another_length_is_a_bug(new_store: NewStore) -> None:
    """Goal: a wrong length never shifts the columns. Method: two ids whose lengths make up for one another."""
    store = await serving(new_store)
    odd: list[Command] = [
        msgspec.structs.replace(command(1), tx_id=b"x" * 31),
        msgspec.structs.replace(command(2), tx_id=b"x" * 33),
    ]
    with pytest.raises(InvariantBroken, match="32 bytes"):
        await store.admit(odd, 0)
