"""A front end whose core serves no more closes its clients' connections; one whose core is silent waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ledger_api.server.main import close_when_passive
from tests.waiting import eventually
from tests.worlds.api_world import ACTIVE, PASSIVE, StubParticipant


@asynccontextmanager
async def watched(core: StubParticipant, closed: list[None]) -> AsyncIterator[None]:
    watching = asyncio.create_task(close_when_passive(core, lambda: closed.append(None)))
    await asyncio.sleep(0)
    yield
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


async def changes(core: StubParticipant) -> None:
    core.standing_changes.notify()
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def test_connections_are_closed_once_each_time_it_stops_being_active() -> None:
    """Goal: clients look for the next active at once. Method: active, passive, passive again, active, passive."""
    core, closed = StubParticipant(), list[None]()
    async with watched(core, closed):
        for standing, count in ((ACTIVE, 0), (PASSIVE, 1), (PASSIVE, 1), (ACTIVE, 1), (PASSIVE, 2)):
            core.standing = standing
            await changes(core)
            await eventually(lambda count=count: _holds(len(closed) == count))


async def test_a_silent_core_closes_nothing() -> None:
    """Goal: a core that stands still for a moment costs no connection. Method: silence, then the core's own word."""
    core, closed = StubParticipant(), list[None]()
    async with watched(core, closed):
        core.standing, core.is_silent = PASSIVE, True
        await changes(core)
        assert closed == []
        core.is_silent = False
        await changes(core)
        await eventually(lambda: _holds(closed == [None]))


async def test_one_that_was_never_active_closes_nothing() -> None:
    """Goal: a passive takes connections as they come. Method: passive from the start."""
    core, closed = StubParticipant(), list[None]()
    core.standing = PASSIVE
    async with watched(core, closed):
        await changes(core)
        assert closed == []


async def _holds(fact: bool) -> bool:
    return fact
