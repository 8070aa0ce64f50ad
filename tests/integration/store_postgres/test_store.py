"""The participant store on a real Postgres, through real lock sessions."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import msgspec
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from ha.errors import LockLost
from replica.local.postgres import PostgresServer
from replica.notary.errors import InvariantBroken, StoreUnavailable
from replica.notary.position import encode_position
from replica.store.interface import Completion, ParticipantStore, Pruned
from replica.store.open import open_reader, published_state
from replica.store.postgres import migrate as migrations
from replica.store.postgres.board import postgres_board
from replica.store.postgres.migrate import migrate
from replica.store.postgres.status import read_status
from replica.store.postgres.store import PostgresStore, named_statement
from replica.store.reader import CompletionReader
from tests.contracts.reader_contract import (
    ReaderContract,
    publish_over_time,
    publish_some,
)
from tests.contracts.side_by_side import played
from tests.contracts.store_contract import (
    REJECTED,
    TOPIC,
    NewStore,
    StoreContract,
    activated,
    at,
    command,
    completion,
    ends_on,
    publish,
)
from tests.contracts.store_machine import PATIENT, StoreMachine, StoreWorld, memory_world
from tests.hostile_defaults import make_hostile
from tests.integration.conftest import MakeDatabase
from tests.integration.store_postgres.world import MIGRATION_LOCK, looking, open_session, rows, sessions

pytestmark = pytest.mark.postgres


class TestPostgresStore(StoreContract):
    """See StoreContract."""


def test_it_answers_as_the_double_does(make_database: MakeDatabase) -> None:
    """Goal: see StoreMachine. Method: random calls."""

    @asynccontextmanager
    async def world() -> AsyncIterator[StoreWorld]:
        dsn = await make_database()
        await migrate(dsn, MIGRATION_LOCK)
        reader = open_reader(dsn)
        async with sessions(dsn) as opened, postgres_board(dsn, "test") as board:

            async def new_store() -> ParticipantStore:
                return PostgresStore(await open_session(dsn, opened, lease_s=PATIENT.lease_s))

            yield StoreWorld(new_store, reader, ends=partial(ends_on, board), shared=board)
            await reader.close()

    played(partial(StoreMachine, memory_world, world), examples=10, steps=50)


@pytest.mark.thorough
class TestPostgresStoreUnderHostileDefaults(StoreContract):
    """See StoreContract. Operators' history, which has times, is read in each of its tests of ends."""

    @pytest.fixture
    async def dsn(self, make_database: MakeDatabase) -> str:
        made = await make_hostile(await make_database())
        await migrate(made, MIGRATION_LOCK)
        return made


@pytest.fixture
async def reader(dsn: str) -> AsyncIterator[CompletionReader]:
    reader = open_reader(dsn)
    yield reader
    await reader.close()


class TestPostgresReader(ReaderContract):
    """See ReaderContract."""


async def test_a_page_of_large_conflicts_is_bounded_in_bytes(new_store: NewStore, reader: CompletionReader) -> None:
    """Goal: no page fills the memory. Method: details of 1 MB and of nothing, read page by page."""
    store = await activated(new_store)
    details = [b"x" * 1_000_000] * 6 + [b""] * 600
    for n, detail in enumerate(details):
        await publish(store, [completion(command(n), n, REJECTED, detail=detail)], n, n)
    sizes, after = [], 0
    while after < len(details):
        page = await reader.read(after, len(details))
        sizes.append(len(page))
        after = page[-1][0]
    assert sizes == [4, 500, 102]


async def test_the_published_state_is_that_of_the_store(new_store: NewStore, dsn: str) -> None:
    """Goal: an audit starts from what the active published. Method: nothing yet, then one completion."""
    assert published_state(dsn).position is None
    store = await activated(new_store)
    await publish(store, [completion(command(1), 7)], 7)
    state = published_state(dsn)
    assert (state.topic_id, state.ledger_end) == (TOPIC, 1)
    assert state.position == encode_position(at(7, 1))


async def test_a_reader_cannot_write(reader: CompletionReader, dsn: str) -> None:
    """Goal: what reads for the API never changes anything. Method: its own connection, an ordinary statement."""
    assert await reader.first_at(0, 0) == 1
    connection = reader._connection  # type: ignore[attr-defined]
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        await connection.execute("UPDATE participant SET epoch = 99")


async def test_a_reader_that_vanished_is_missed_within_half_a_minute(reader: CompletionReader) -> None:
    """Goal: a machine that is gone costs the database no connections for hours. Method: what is in force for it."""
    assert await reader.first_at(0, 0) == 1
    connection = reader._connection  # type: ignore[attr-defined]
    names = ("idle", "interval", "count")
    in_force = [await (await connection.execute(f"SHOW tcp_keepalives_{name}")).fetchone() for name in names]
    idle_s, interval_s, count = (int(value) for (value,) in in_force)
    assert 0 < idle_s + interval_s * count <= 30


async def test_a_reader_comes_back_after_its_server_ended_it(
    new_store: NewStore, reader: CompletionReader, dsn: str
) -> None:
    """Goal: a connection that ended while nobody read costs no caller an error. Method: end the server's side, read."""
    await publish_some(new_store)
    await reader.read(0, 3)
    await rows(dsn, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'notary-feed'")
    assert len(await reader.read(0, 3)) == 3


async def test_every_field_is_stored_as_it_was(new_store: NewStore, dsn: str) -> None:
    """Goal: the table has what the log has. Method: awkward texts and bytes, read back by SQL."""
    store = await activated(new_store)
    of = msgspec.structs.replace(command(1), user_id='é{}",\\ NULL', submission_id="NULL", act_as=("one",))
    done = completion(of, 7, REJECTED, recorded_us=2**62, detail=bytes(range(256)))
    await publish(store, [done], 7)
    ((ledger_offset, *fields),) = await rows(dsn, "SELECT * FROM completion")
    assert ledger_offset == 1
    fields[4] = tuple(fields[4])  # type: ignore[arg-type]
    assert Completion(*fields) == done  # type: ignore[arg-type]


async def test_what_is_below_the_bound_is_deleted_and_nothing_else(
    new_store: NewStore, reader: CompletionReader, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: deleting is house-keeping below a bound that is there already. Method: chunks, twice; what is left."""
    from replica.store.open import export_completions
    from replica.store.postgres import prune

    monkeypatch.setattr(prune, "CHUNK_ROWS", 2)
    store = await publish_over_time(new_store)
    told: list[int] = []
    assert await prune.delete_pruned(dsn, told.append) == 0
    await store.prune(5, 10**9)
    assert await prune.delete_pruned(dsn, told.append) == 5
    assert await prune.delete_pruned(dsn, told.append) == 0
    assert told == [2, 4, 5]
    assert await rows(dsn, "SELECT min(ledger_offset), count(*) FROM completion") == [(6, 5)]
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
    store = await activated(new_store)
    await publish(store, [completion(command(1), 7, REJECTED, detail=b"x" * 2_000_000)], 7)
    assert await rows(dsn, "SELECT length(detail) FROM completion") == [(2_000_000,)]


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
            ledger_end = before.ledger_end
            ((pid,),) = await rows(dsn, "SELECT pid FROM pg_stat_activity WHERE application_name = 'r1'")
            killer = asyncio.create_task(_terminate(dsn, pid, chance.random() * 0.02))
            with pytest.raises(LockLost):
                while True:
                    batch = [command(number + n) for n in range(200)]
                    number += 200
                    offset += 1
                    await publish(store, [completion(of, offset) for of in batch], offset, ledger_end)
                    ledger_end += 200
            await killer
            ((published_end, highest, count, published, newest),) = await rows(
                dsn,
                "SELECT ledger_end, (SELECT coalesce(max(ledger_offset), 0) FROM completion),"
                " (SELECT count(*) FROM completion), published_offset,"
                " (SELECT max(log_offset) FROM completion) FROM participant",
            )
            assert published_end == highest == count
            assert published == (-1 if newest is None else newest)


async def _terminate(dsn: str, pid: object, after_s: float) -> None:
    async with looking(dsn) as connection:
        await asyncio.sleep(after_s)
        await connection.execute(b"SELECT pg_terminate_backend(%s)", (pid,))


async def test_a_statement_that_the_server_stops_ends_the_session(dsn: str) -> None:
    """Goal: an unknown outcome is reported as unknown. Method: lock the table, so that a publication runs too long."""
    async with sessions(dsn) as opened, looking(dsn) as other:
        session = await open_session(dsn, opened, statement_max_s=0.3, heartbeat_s=0.5)
        store = PostgresStore(session)

        async def make() -> PostgresStore:
            return store

        await activated(make)
        async with other.transaction():
            await other.execute(b"LOCK TABLE completion")
            with pytest.raises(LockLost):
                await publish(store, [completion(command(1), 1)], 1)
        assert session.closed
        assert await rows(dsn, "SELECT published_offset, ledger_end FROM participant") == [(-1, 0)]


async def test_a_server_that_takes_no_writes_is_unavailable(new_store: NewStore, dsn: str) -> None:
    """Goal: a demoted primary is not taken for a bug. Method: make the session's transactions read-only."""
    store = await activated(new_store)
    async with store._session.statement("test") as connection:  # type: ignore[attr-defined]
        await connection.execute("SET default_transaction_read_only = on")
    with pytest.raises(StoreUnavailable):
        await publish(store, [completion(command(1), 1)], 1)


async def test_statements_are_planned_by_key_also_when_tables_were_empty(new_store: NewStore, dsn: str) -> None:
    """Goal: a plan made for empty tables never scans full ones. Method: plan, fill behind the planner's back, run."""
    store = await activated(new_store)
    offset = 0
    async with looking(dsn) as other:
        await other.execute(b"ANALYZE")
        for n in range(8):  # past the number of runs after which Postgres keeps a plan
            offset += 1
            await publish(store, [completion(command(n), offset)], offset, n)
        await publish(store, [completion(command(n), offset + 1) for n in range(100, 5_000)], offset + 1, 8)
        assert await store.prune(None, 2**62) == Pruned(4_908, 4_908)
        async with store._session.statement("test") as connection:  # type: ignore[attr-defined]
            if connection.info.server_version < 150_000:
                pytest.skip("only from Postgres 15 on can a connection be told to hand over what it counted")
            await connection.execute("SELECT pg_stat_force_next_flush()")
            await connection.execute("SELECT")
        scans = await rows(dsn, "SELECT relname, seq_tup_read FROM pg_stat_user_tables WHERE relname = 'completion'")
        assert dict(scans) == {"completion": 0}


async def test_ledger_offsets_come_from_no_sequence(dsn: str) -> None:
    """Goal: no gap by a rollback, no index that nobody needs. Method: the catalogue."""
    assert await rows(dsn, "SELECT count(*) FROM pg_class WHERE relkind = 'S'") == [(0,)]
    indexes = await rows(dsn, "SELECT indexname FROM pg_indexes WHERE tablename = 'completion'")
    assert indexes == [("completion_pkey",)]


async def test_only_what_a_plan_depends_on_is_analysed(new_store: NewStore, dsn: str) -> None:
    """Goal: autovacuum sorts no ids. Method: rows in the large table, an analysis, and what it found out."""
    store = await activated(new_store)
    await publish(store, [completion(command(n), n) for n in range(10)], 9)
    async with looking(dsn) as connection:
        await connection.execute("ANALYZE")
    assert await rows(dsn, "SELECT attname FROM pg_stats WHERE tablename = 'completion'") == [("ledger_offset",)]


async def test_status_tells_people_where_things_are(new_store: NewStore, dsn: str) -> None:
    """Goal: one look shows who leads and how far. Method: an activation, one completion."""
    store = await activated(new_store)
    await publish(store, [completion(command(1), 7)], 7)
    status = await read_status(dsn)
    assert (status.topic_id, status.epoch, status.replica) == (TOPIC, 1, "r")
    assert (status.published_offset, status.ledger_end) == (7, 1)
    assert status.schema_version == migrations.newest_version()
    await activated(new_store)
    history = await rows(dsn, "SELECT epoch, replica, succeeded_at IS NULL FROM leader_history ORDER BY epoch")
    assert history == [(1, "r", False), (2, "r", True)]


async def test_status_does_not_wait_for_who_holds_the_tables(new_store: NewStore, dsn: str) -> None:
    """Goal: `notary status` and `doctor` end in any case. Method: a table that another session has to itself."""
    await activated(new_store)
    async with await psycopg.AsyncConnection.connect(dsn) as other:
        await other.execute(b"LOCK TABLE participant IN ACCESS EXCLUSIVE MODE")
        async with asyncio.timeout(30):
            with pytest.raises(StoreUnavailable, match="lock timeout"):
                await read_status(dsn)


async def test_an_id_of_another_length_is_a_bug(new_store: NewStore) -> None:
    """Goal: a wrong length never shifts the columns. Method: two ids whose lengths make up for one another."""
    store = await activated(new_store)
    odd = [
        msgspec.structs.replace(completion(command(1), 7), tx_id=b"x" * 31),
        msgspec.structs.replace(completion(command(2), 8), tx_id=b"x" * 33),
    ]
    with pytest.raises(InvariantBroken, match="32 bytes"):
        await publish(store, odd, 8)
