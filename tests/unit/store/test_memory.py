"""The participant store in memory keeps the contract, over the lock session's double."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest

from ha.clock import SystemClock
from ha.errors import LockLost
from ha.lock.memory import MemoryLockServer, MemoryLockSession
from ha.settings import ElectionSettings
from replica.store.interface import Published
from replica.store.memory import MemoryDatabase, MemoryDesk, MemoryMarks, MemoryReader, MemoryStore
from tests.contracts.desk_contract import DeskContract, NewDesk
from tests.contracts.reader_contract import ReaderContract
from tests.contracts.side_by_side import played
from tests.contracts.store_contract import (
    TOPIC,
    ContradictedMarksContract,
    Ends,
    NewStore,
    StoreContract,
    activated,
    at,
    command,
    completion,
    publish,
)
from tests.contracts.store_machine import StoreMachine, memory_world


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
def ends(database: MemoryDatabase) -> Ends:
    async def read() -> dict[int, tuple[str | None, str | None]]:
        return {epoch: (database.ended.get(epoch), database.found_over.get(epoch)) for epoch, _ in database.grants}

    return read


class TestMemoryStore(StoreContract):
    """See StoreContract."""


def test_it_answers_as_it_should() -> None:
    """Goal: see StoreMachine. Method: random calls, to two of them."""
    played(partial(StoreMachine, memory_world, memory_world), examples=60, steps=40)


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


@pytest.fixture
def shared(database: MemoryDatabase) -> MemoryMarks:
    return MemoryMarks(database, partial(asyncio.sleep, 0))


class TestContradictedMarks(ContradictedMarksContract):
    """See ContradictedMarksContract."""


@pytest.fixture
def reader(database: MemoryDatabase) -> MemoryReader:
    return MemoryReader(lambda: database)


class TestMemoryReader(ReaderContract):
    """See ReaderContract."""


async def test_what_a_lost_session_did_is_unknown_but_whole(
    new_store: NewStore, server: MemoryLockServer, database: MemoryDatabase
) -> None:
    """Goal: no statement of a dead session takes effect. Method: kill the sessions, then publish."""
    store = await activated(new_store)
    assert await publish(store, [completion(command(1), 7)], 7) == 0
    server.end_all()
    with pytest.raises(LockLost):
        await publish(store, [completion(command(2), 8)], 8, 1)
    with pytest.raises(LockLost):
        await store.published()
    assert database.published() == Published(at(7, 1), 1)


async def test_grants_are_kept_for_people(new_store: NewStore, database: MemoryDatabase) -> None:
    """Goal: who was active when. Method: two activations."""
    await activated(new_store)
    await activated(new_store)
    assert database.topic_id == TOPIC
    assert database.grants == [(1, "r"), (2, "r")]
