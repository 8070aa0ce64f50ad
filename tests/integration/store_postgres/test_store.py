"""The participant store on a real Postgres, through real lock sessions."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import msgspec
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from ha.errors import LockLost
from replica.local.postgres import PostgresServer
from replica.notary.errors import InvariantBroken, StoreUnavailable, ValuesRefused
from replica.notary.position import encode_position
from replica.store.interface import Command, Completion
from replica.store.open import open_reader, published_state
from replica.store.postgres import migrate as migrations
from replica.store.postgres.migrate import migrate
from replica.store.postgres.prune import delete_pruned
from replica.store.postgres.status import read_status
from replica.store.postgres.store import PostgresStore, named_statement
from replica.store.reader import CompletionReader
from tests.contracts.reader_contract import (
    InFlightByCompletionsContract,
    PruningContract,
    ReaderContract,
    Sweep,
    publish_over_time,
    publish_some,
)
from tests.contracts.store_contract import (
    FRESH,
    REJECTED,
    TOPIC,
    NewStore,
    StoreContract,
    accepted,
    activated,
    agrees_with_memory,
    at,
    command,
    completion,
    in_order,
    serving,
)
from tests.hostile_defaults import make_hostile
from tests.integration.conftest import MakeDatabase
from tests.integration.store_postgres.world import MIGRATION_LOCK, looking, open_session, rows, sessions

pytestmark = pytest.mark.postgres


class TestPostgresStore(StoreContract):
    """See StoreContract."""


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


@pytest.fixture
def sweep(dsn: str) -> Sweep:
    async def delete() -> None:
        await delete_pruned(dsn, lambda _: None)

    return delete


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


async def test_a_bound_that_an_older_release_moved_has_a_time_all_the_same(new_store: NewStore, dsn: str) -> None:
    """Goal: a release that knows no time of the bound leads to no false one. Method: move the bound as it does, with
    completions above it and without; the time is never earlier than that of what may be gone."""
    store = await publish_over_time(new_store)
    await store.prune(2, 10**9)
    await rows(dsn, "UPDATE participant SET pruned_to = 4 RETURNING 1")
    assert (await store.published()).pruned_us == 5_000
    await rows(dsn, "UPDATE participant SET pruned_to = 10 RETURNING 1")
    assert (await store.published()).pruned_us == at(10).stamp_us
    await store.publish([completion(command(11), 11, recorded_us=11_000)], at(11))
    await store.prune(None, 10**9)
    assert (await store.published()).pruned_us == 11_000


async def test_a_value_that_the_database_does_not_take_costs_nobody_else_anything(new_store: NewStore) -> None:
    """Goal: a refused value is no broken store. Method: texts and times that it has no form for."""
    store = await serving(new_store)
    for odd in ({"user_id": "a\0b"}, {"submission_id": "\ud800"}, {"submitted_us": 2**63}):
        with pytest.raises(ValuesRefused):
            await store.admit([command(1), msgspec.structs.replace(command(2), **odd)], 0)
    with pytest.raises(ValuesRefused):
        await store.admit([command(1)], -(10**25))
    assert await store.admit([command(1), command(2)], -(2**63)) == [FRESH] * 2
    assert await (await activated(new_store)).pending(10) == in_order([command(1), command(2)])


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
    memory = await agrees_with_memory(new_store, random.Random(7))
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
    """Goal: an unknown outcome is reported as unknown. Method: lock the table, so that a publication runs too long."""
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


async def test_only_what_a_plan_depends_on_is_analysed(new_store: NewStore, dsn: str) -> None:
    """Goal: autovacuum sorts no arrays of ids. Method: rows in every table, an analysis, and what it found out."""
    store = await serving(new_store)
    await store.admit([command(n) for n in range(20)], 0)
    await store.publish([completion(command(n), n) for n in range(10)], at(9))
    async with looking(dsn) as connection:
        await connection.execute("ANALYZE")
    found = await rows(
        dsn,
        "SELECT tablename, attname FROM pg_stats WHERE tablename IN ('admission', 'completion', 'command_accepted')",
    )
    assert set(found) == {
        ("admission", "number"),
        ("admission", "ledger_end"),
        ("command_accepted", "change_id"),
        ("completion", "ledger_offset"),
        ("completion", "change_id"),
        ("completion", "submission_id"),
    }


async def test_status_tells_people_where_things_are(new_store: NewStore, dsn: str) -> None:
    """Goal: one look shows who leads and how far. Method: an activation, two commands, one published."""
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


async def test_status_does_not_wait_for_who_holds_the_tables(new_store: NewStore, dsn: str) -> None:
    """Goal: `notary status` and `doctor` end in any case. Method: a table that another session has to itself."""
    await serving(new_store)
    async with await psycopg.AsyncConnection.connect(dsn) as other:
        await other.execute(b"LOCK TABLE participant IN ACCESS EXCLUSIVE MODE")
        async with asyncio.timeout(30):
            with pytest.raises(StoreUnavailable, match="lock timeout"):
                await read_status(dsn)


async def test_an_id_of_another_length_is_a_bug(new_store: NewStore) -> None:
    """Goal: a wrong length never shifts the columns. Method: two ids whose lengths make up for one another."""
    store = await serving(new_store)
    odd: list[Command] = [
        msgspec.structs.replace(command(1), tx_id=b"x" * 31),
        msgspec.structs.replace(command(2), tx_id=b"x" * 33),
    ]
    with pytest.raises(InvariantBroken, match="32 bytes"):
        await store.admit(odd, 0)
