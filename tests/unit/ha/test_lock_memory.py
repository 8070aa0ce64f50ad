"""The lock session's in-memory double keeps the contract, and can play the faults of a database."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from ha.errors import LockUnavailable, PoolerDetected, ReadOnlyServer, UnsafeCommitMode
from ha.lock.memory import MemoryLockServer, MemoryLockSession
from tests.contracts.lock_contract import CLOCK, SETTINGS, LockContract, World
from tests.contracts.lock_machine import LockMachine, memory_world
from tests.contracts.side_by_side import played

LEASE_S = 3.0  # the server's: a process that is not scheduled for a second keeps its session


@pytest.fixture
def world() -> Iterator[World]:
    server = MemoryLockServer(CLOCK, lease_s=LEASE_S)

    async def kill(session: Any) -> None:
        server.end(session._connection.pid)

    async def stall(connection: Any) -> None:
        await asyncio.sleep(10)

    async def nothing(connection: Any) -> None:
        await connection.run(lambda: None)

    def session(name: str, scope: str = "notary") -> Any:
        return MemoryLockSession(server, name=name, settings=SETTINGS, clock=CLOCK, scope=scope)

    with World(session, kill, stall, nothing, lease_s=LEASE_S).watched() as made:
        yield made


class TestMemoryLock(LockContract):
    """See LockContract."""


def test_it_answers_as_it_should() -> None:
    """Goal: see LockMachine. Method: random calls, to two of them."""
    played(partial(LockMachine, memory_world, memory_world), examples=30, steps=40)


async def test_memory_refuses_what_postgres_would() -> None:
    """Goal: the double can play each refusal. Method: one switch at a time."""
    for attribute, value, error in [
        ("pooled", True, PoolerDetected),
        ("read_only", True, ReadOnlyServer),
        ("commits_durably", False, UnsafeCommitMode),
        ("accepts", False, LockUnavailable),
    ]:
        server = MemoryLockServer(CLOCK, lease_s=1.0)
        setattr(server, attribute, value)
        session = MemoryLockSession(server, name="R1", settings=SETTINGS, clock=CLOCK)
        with pytest.raises(error):
            await session.open()
        assert session.closed


async def test_memory_shows_a_clock_that_is_off() -> None:
    """Goal: skew has the right sign and size. Method: a database two seconds ahead."""
    server = MemoryLockServer(CLOCK, lease_s=1.0)
    server.clock_ahead_us = 2_000_000
    session = MemoryLockSession(server, name="R1", settings=SETTINGS, clock=CLOCK)
    await session.open()
    assert session.clock_skew_s == pytest.approx(-2.0, abs=0.01)
