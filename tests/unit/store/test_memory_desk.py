"""The desk in memory keeps the contract."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ha.clock import SystemClock
from ha.lock.memory import MemoryLockServer, MemoryLockSession
from ha.settings import ElectionSettings
from replica.store.memory import MemoryDatabase, MemoryDesk, MemoryStore
from tests.contracts.desk_contract import DeskContract, NewDesk
from tests.contracts.store_contract import NewStore


@pytest.fixture
def database() -> MemoryDatabase:
    return MemoryDatabase()


@pytest.fixture
def server() -> MemoryLockServer:
    return MemoryLockServer(SystemClock(), lease_s=3.0)


@pytest.fixture
def new_store(server: MemoryLockServer, database: MemoryDatabase) -> NewStore:
    async def make() -> MemoryStore:
        session = MemoryLockSession(server, name="r", settings=ElectionSettings(), clock=SystemClock())
        await session.open()
        return MemoryStore(session, database)

    return make


@pytest.fixture
def database_name(server: MemoryLockServer) -> str:
    return str(server.identity)


@pytest.fixture
def new_desk(server: MemoryLockServer, database: MemoryDatabase) -> NewDesk:
    @asynccontextmanager
    async def make() -> AsyncIterator[MemoryDesk]:
        yield MemoryDesk(database, lambda: str(server.identity), SystemClock().wall_us)

    return make


class TestMemoryDesk(DeskContract):
    """See DeskContract."""
