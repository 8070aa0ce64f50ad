"""Sessions of a lease over a request log: each has a follower and an index of its own, as a replica has."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from ha.lock.lease import LeaseConnection, LeaseSession
from ha.settings import ElectionSettings
from replica.active.lease_log import FollowedLease
from replica.following.follower import Follower
from replica.index.memory import MemoryIndex
from replica.log.interface import RequestLog
from replica.notary.formats import Formats
from replica.notary.granters import Release
from replica.notary.records import BarrierRecord, encode_record
from replica.settings import CoreSettings
from tests.contracts.lock_contract import CLOCK, SETTINGS, World
from tests.worlds.beginning import no_demand

CORE = CoreSettings(standby_read_pause_s=0.01, read_wait_s=0.2)


async def nothing_raised() -> Formats:
    """No operator raised any formats."""
    return Formats()


def nobodys(epoch: int, log_id: str) -> bytes:
    """A barrier that takes the lease from its holder, and gives it to nobody."""
    return encode_record(BarrierRecord(epoch, os.urandom(16), "", Release(""), 2, 3))


@asynccontextmanager
async def lease_world(
    open_log: Callable[[], RequestLog], settings: ElectionSettings = SETTINGS
) -> AsyncIterator[World]:
    """One log whose lease nobody holds. `open_log`: a replica's access to it; the log may have records."""
    followers: list[tuple[Follower, asyncio.Task[None], RequestLog]] = []
    broken: list[BaseException] = []
    operator = open_log()
    log_id = await operator.check()
    writer = await operator.open_writer()

    async def take(epoch: int) -> None:
        end = await operator.end_offset()
        writer.append(nobodys(epoch, log_id))
        while await operator.end_offset() == end:
            await asyncio.sleep(0.01)

    def follow() -> tuple[Follower, RequestLog]:
        log = open_log()
        follower = Follower(log, MemoryIndex(), CLOCK, CORE, lambda _: None, require=no_demand)
        followers.append((follower, asyncio.create_task(follower.run()), log))
        return follower, log

    def session(name: str, scope: str | None = None) -> Any:
        follower, log = follow()
        lease = FollowedLease(log, follower, os.urandom, CLOCK.wall_us, nothing_raised)
        return LeaseSession(lease, name=name, settings=settings, clock=CLOCK, scope=scope)

    async def kill(_: Any) -> None:
        position = followers[0][0].position
        assert position is not None
        await take(position.epoch + 10)

    async def stall(connection: LeaseConnection) -> None:
        await connection.run(asyncio.sleep(60))

    async def nothing(connection: LeaseConnection) -> None:
        await connection.ask()

    for _ in range(3):  # so that what was witnessed has an offset above 0
        await take((await operator.end_offset()) + 1)
    with World(session, kill, stall, nothing, lease_s=settings.lease_s).watched() as world:
        yield world
    for _, task, log in followers:
        task.cancel()
        broken += [end for end in await asyncio.gather(task, return_exceptions=True) if isinstance(end, Exception)]
        await log.close()
    await writer.close()
    await operator.close()
    assert not broken
