"""A lease over a log, and beside it a session of the database that its holder writes to. They end together.

The database grants nothing here: its own lock stays free. The epoch that a store takes note of fences what a deposed
holder may still send.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Generic

from ha.errors import HaError, reason_of
from ha.lock.interface import (
    CLOSED,
    ConnectionT_co,
    DatabaseIdentity,
    Grant,
    LockAnswer,
    LockView,
    ReleaseNote,
    ServerLease,
    WriteSession,
)
from ha.lock.lease import LeaseSession


class LeaseBesideDatabase(Generic[ConnectionT_co]):
    """See WriteSession: questions about the lock go to the lease, statements to the database.

    Each question asks both, so that the database does not end an idle session, and a lost one is noticed.
    """

    def __init__(self, lease: LeaseSession, database: WriteSession[ConnectionT_co]) -> None:
        self._lease = lease
        self.database = database

    @property
    def name(self) -> str:
        """See LockSession."""
        return self._lease.name

    @property
    def answered_at_s(self) -> float:
        """See LockSession."""
        return self._lease.answered_at_s

    @property
    def closed(self) -> bool:
        """See LockSession."""
        return self._lease.closed or self.database.closed

    @property
    def grant(self) -> Grant | None:
        """See LockSession."""
        return self._lease.grant

    @property
    def clock_skew_s(self) -> float:
        """See LockSession."""
        return self.database.clock_skew_s

    @property
    def server_lease(self) -> ServerLease:
        """See LockSession."""
        return self._lease.server_lease

    async def open(self) -> None:
        """See LockSession."""
        try:
            await self.database.open()
            await self._lease.open()
        except BaseException as error:
            await self.close(reason_of(error))
            raise

    async def try_lock(self) -> LockAnswer:
        """See LockSession."""
        await self._ask_database()
        return await self._lease.try_lock()

    async def look(self) -> LockView:
        """See LockSession."""
        await self._ask_database()
        return await self._lease.look()

    async def confirm(self) -> float:
        """See LockSession."""
        asked_at_s = await self._lease.confirm()
        await self._ask_database()
        return asked_at_s

    async def release(self, to: str | None = None) -> None:
        """See LockSession."""
        await self._lease.release(to)

    async def wait_release(self) -> ReleaseNote:
        """See LockSession."""
        return await self._lease.wait_release()

    async def close(self, why: str = CLOSED) -> None:
        """See LockSession."""
        await self.database.close(why)
        await self._lease.close(why)

    async def wait_closed(self) -> str:
        """See LockSession: as soon as one of them is closed."""
        waits = [asyncio.ensure_future(session.wait_closed()) for session in (self._lease, self.database)]
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            why = done.pop().result()
        finally:
            for wait in waits:
                wait.cancel()
        await self.close(why)
        return why

    def statement(self, name: str) -> AbstractAsyncContextManager[ConnectionT_co]:
        """See WriteSession."""
        return self.database.statement(name)

    async def database_identity(self) -> DatabaseIdentity:
        """See WriteSession: what grants the epochs is the log."""
        return await self._lease.database_identity()

    async def _ask_database(self) -> None:
        """Raises LockLost when the database does not answer; the lease ends with it."""
        try:
            await self.database.look()
        except HaError as error:
            await self._lease.close(reason_of(error))
            raise
