"""Fixtures of the tests of the store on Postgres."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from ha.lock.postgres import PostgresLockSession
from replica.store.interface import ParticipantStore
from replica.store.postgres.board import postgres_board
from replica.store.postgres.migrate import migrate
from replica.store.postgres.store import PostgresStore
from tests.contracts.store_contract import (
    Ends,
    NewStore,
    ends_on,
)
from tests.integration.conftest import MakeDatabase
from tests.integration.store_postgres.world import MIGRATION_LOCK, open_session, sessions


@pytest.fixture
async def dsn(make_database: MakeDatabase) -> str:
    """A new database with the schema."""
    made = await make_database()
    await migrate(made, MIGRATION_LOCK)
    return made


@pytest.fixture
async def opened(dsn: str) -> AsyncIterator[list[PostgresLockSession]]:
    async with sessions(dsn) as made:
        yield made


@pytest.fixture
def new_store(dsn: str, opened: list[PostgresLockSession]) -> NewStore:
    async def make() -> ParticipantStore:
        return PostgresStore(await open_session(dsn, opened))

    return make


@pytest.fixture
def ends(dsn: str) -> Ends:
    async def read() -> dict[int, tuple[str | None, str | None]]:
        async with postgres_board(dsn, "test") as board:
            return await ends_on(board)

    return read
