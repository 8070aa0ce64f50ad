"""Names are Unicode: a database that cannot hold every text is refused, and no setting of a client changes a text."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from replica.local.postgres import PostgresServer
from replica.notary.errors import StoreMismatch
from replica.store.open import export_completions, open_reader
from replica.store.postgres import migrate as migrations
from replica.store.postgres.board import postgres_board
from replica.store.postgres.migrate import migrate
from replica.store.postgres.store import PostgresStore
from tests.contracts.store_contract import TOPIC, activated, command, completion, publish
from tests.integration.store_postgres.world import MIGRATION_LOCK, looking, open_session, sessions

pytestmark = pytest.mark.postgres


@pytest.fixture(params=["LATIN1", "SQL_ASCII"])
async def narrow(request: pytest.FixtureRequest, postgres_server: PostgresServer) -> AsyncIterator[str]:
    """An empty database that does not keep Unicode."""
    name = f"test_{request.param.lower()}"
    async with looking(postgres_server.dsn()) as superuser:
        await superuser.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{request.param}'".encode())
        yield postgres_server.dsn(name)
        await superuser.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


async def test_no_schema_is_made_where_names_would_be_stored_wrongly(narrow: str) -> None:
    """Goal: it is found before anything is stored. Method: migrate a database in each such encoding."""
    with pytest.raises(StoreMismatch, match="UTF8"):
        await migrate(narrow, MIGRATION_LOCK)
    async with looking(narrow) as connection:
        found = await (await connection.execute(b"SELECT to_regclass('participant')")).fetchone()
    assert found == (None,)


async def test_a_database_of_an_earlier_release_is_refused_when_it_is_bound(narrow: str) -> None:
    """Goal: nobody serves on it. Method: a schema from before the check, bound by an activation."""
    async with await psycopg.AsyncConnection.connect(narrow) as connection:
        await connection.execute(migrations._VERSIONS.encode())
        for migration in migrations.migrations():
            await connection.execute(migration.text)
            values = (migration.version, migration.name, migration.usable_from)
            await connection.execute(b"INSERT INTO schema_version VALUES (%s, %s, %s)", values)
    async with sessions(narrow) as opened:
        with pytest.raises(StoreMismatch, match="UTF8"):
            await PostgresStore(await open_session(narrow, opened)).bind(TOPIC)


async def test_a_client_s_encoding_changes_no_name(dsn: str) -> None:
    """Goal: what libpq reads elsewhere has no effect. Method: a connection string that asks for LATIN1, on every way
    to the database."""
    given = make_conninfo(dsn, client_encoding="LATIN1")
    name, party = "Genève 漢字 😀", "O=Société 日本,C=CH"
    async with sessions(given) as opened:

        async def new_store() -> PostgresStore:
            return PostgresStore(await open_session(given, opened))

        store = await activated(new_store)
        of = msgspec.structs.replace(command(1), user_id=name, act_as=(party,))
        await publish(store, [completion(of, 7)], 7)
        await store.end_epoch(1, "r", name)
    async with postgres_board(given, "test") as board:
        assert [activation.end_reason for activation in await board.history(1)] == [name]
    reader = open_reader(given)
    try:
        ((_, read),) = await reader.read(0, 1)
    finally:
        await reader.close()
    with export_completions(given) as export:
        exported = [row.user_id for _, row in export.rows]
    assert (read.user_id, read.act_as, exported) == (name, (party,), [name])
    assert conninfo_to_dict(given)["client_encoding"] == "LATIN1"
