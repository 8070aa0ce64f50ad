"""A worker's desk on Postgres."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from ha.lock.postgres import PostgresLockSession
from replica.local.postgres import PostgresServer
from replica.notary.errors import StoreMismatch, StoreUnavailable
from replica.store.postgres.desk import postgres_desk
from tests.contracts.desk_contract import DeskContract, NewDesk
from tests.integration.store_postgres.world import open_session

pytestmark = pytest.mark.postgres


@pytest.fixture
def new_desk(dsn: str) -> NewDesk:
    return lambda: postgres_desk(dsn, "r/desk")


@pytest.fixture
async def database_name(dsn: str, opened: list[PostgresLockSession]) -> str:
    return str(await (await open_session(dsn, opened)).database_identity())


class TestPostgresDesk(DeskContract):
    """See DeskContract."""


async def test_commits_wait_for_the_disk_whatever_the_server_says(dsn: str) -> None:
    """Goal: a crash of the server gives no range away twice. Method: a login whose default is not to wait."""
    careless = make_conninfo(dsn, options="-c synchronous_commit=off")
    async with postgres_desk(careless, "r/desk") as desk:
        found = await desk._rows("ask", b"SELECT current_setting('synchronous_commit')")
        assert found == [("on",)]


async def test_a_server_without_writes_gives_nothing_away(dsn: str) -> None:
    """Goal: a standby is asked in vain, and says so. Method: sessions that are read-only."""
    async with postgres_desk(make_conninfo(dsn, options="-c default_transaction_read_only=on"), "r/desk") as desk:
        assert (await desk.look()).ledger_end == 0
        with pytest.raises(StoreUnavailable, match="read-only"):
            await desk.draw()


async def test_a_schema_without_the_table_names_the_command(dsn: str, postgres_server: PostgresServer) -> None:
    """Goal: the operator knows what to do. Method: the table is gone; then its row."""
    async with (
        postgres_desk(dsn, "r/desk") as desk,
        await psycopg.AsyncConnection.connect(dsn, autocommit=True) as owner,
    ):
        await owner.execute("DELETE FROM worker_numbers")
        with pytest.raises(StoreMismatch, match="lost a row"):
            await desk.draw()
        await owner.execute("DROP TABLE worker_numbers")
        with pytest.raises(StoreMismatch, match="notary store migrate"):
            await desk.draw()
