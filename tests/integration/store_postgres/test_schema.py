"""Migrations of Postgres, and what each role may do there."""

from __future__ import annotations

import asyncio
from importlib.resources import files

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from replica.local.postgres import PostgresServer
from replica.notary.errors import StoreMismatch, StoreUnavailable
from replica.store.postgres import migrate as migrations
from replica.store.postgres.migrate import migrate
from replica.store.postgres.status import read_status
from replica.store.postgres.store import PostgresStore
from replica.store.schema import Migration
from tests.contracts.store_contract import (
    TOPIC,
    activated,
    command,
    completion,
    publish,
)
from tests.integration.conftest import MakeDatabase
from tests.integration.store_postgres.world import MIGRATION_LOCK, looking, open_session, rows, sessions

pytestmark = pytest.mark.postgres


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
    monkeypatch.setattr("replica.store.postgres.store.newest_version", lambda: migrations.newest_version() + 1)
    async with sessions(dsn) as opened:
        with pytest.raises(StoreMismatch, match="notary store migrate"):
            await PostgresStore(await open_session(dsn, opened)).bind(TOPIC)


FORBIDDEN = [
    "UPDATE completion SET outcome = 'NOTARISED'",
    "DELETE FROM completion",
    "TRUNCATE completion",
    "DELETE FROM participant",
    "UPDATE participant SET ledger_id = gen_random_uuid()",
    "UPDATE participant SET rules_version = 2",
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

        await activated(make)
        assert await publish(store, [completion(command(1), 7)], 7) == 0
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
