"""Reads the request log on Postgres. Readers poll; a notification only saves them the wait for the next poll."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import structlog

from replica.log.interface import LogRecords
from replica.log.postgres.delivery import Delivery, Look
from replica.log.postgres.session import ServerIdentity, Session
from replica.log.postgres.settings import CLOSE_MAX_S, MIB, PostgresLogSettings
from replica.notary.errors import LogRefused, LogUnavailable, NotaryError

log = structlog.get_logger()

FLUSH_POLL_S = 0.001  # first wait for the standbys; doubled up to `poll_every_s`


class PostgresReader:
    """A `LogReader` with a connection of its own. A failure is final: open another reader."""

    def __init__(
        self,
        session: Session,
        log_id: str,
        delivery: Delivery,
        settings: PostgresLogSettings,
        on_close: Callable[[PostgresReader], None],
    ) -> None:
        self._session = session
        self._log_id = log_id
        self._delivery = delivery
        self._settings = settings
        self._on_close = on_close
        self._fetching: asyncio.Task[None] | None = None
        self._looking = False
        self._current = False  # nothing is known that a look would show
        self._more = False  # the last look did not show all that there is
        self._failure: NotaryError | None = None
        self._left: NotaryError | None = None
        self._closed = False

    @property
    def identity(self) -> ServerIdentity:
        """The server that it reads from."""
        return self._session.identity

    def leave(self, why: NotaryError) -> None:
        """Return nothing more from this server, not even what was fetched: a promotion may have taken it back."""
        self._left = why
        self._session.hang_up()

    def offer(self, look: Look) -> None:
        """Take what a writer has just committed. It is held as if a look had shown it: until the standbys have it.

        Whatever does not follow, or what a look is about to show, is left to the next look.
        """
        room = self._settings.read_ahead_mib * MIB - self._delivery.held_bytes - self._delivery.ready_bytes
        follows = look.log_id == self._log_id and look.batches[0].first_offset == self._delivery.next_batch
        if follows and room > 0 and not self._looking:
            self._delivery.see(look)
            self._delivery.release(look.flushed)
        else:
            self._current = False
        self._session.wake()

    async def read(self, max_records: int, wait_s: float) -> LogRecords:
        """See `LogReader.read`. The next read returns what a cancelled read has fetched."""
        loop = asyncio.get_running_loop()
        until_s, is_over = loop.time() + wait_s, False
        while True:
            if self._closed:
                raise LogUnavailable("the reader is closed")
            if self._left is not None:
                raise self._left
            if (records := self._delivery.take(max_records)) or is_over:
                self._fetch_ahead()
                return records
            if self._failure is not None:
                raise self._failure
            if self._fetching is None:
                left_s = max(0.0, until_s - loop.time())
                self._fetching = asyncio.create_task(self._fetch(partial(self._until_ready, left_s)))
            await asyncio.wait([self._fetching])  # not awaited itself: that would cancel it with this read
            self._fetched()
            is_over = self._failure is None and loop.time() >= until_s

    async def close(self) -> None:
        """See `LogReader.close`."""
        self._closed = True
        self._session.hang_up()
        if self._fetching is not None:
            await asyncio.wait([self._fetching], timeout=CLOSE_MAX_S)
            self._session.hang_up()
        self._on_close(self)

    def _fetch_ahead(self) -> None:
        """Look while the caller works on what it was given. Only a reader that catches up does so: what a writer offers
        during a look cannot be taken."""
        if self._fetching is not None and self._fetching.done():
            self._fetched()
        low = self._delivery.ready_bytes < self._settings.read_ahead_mib * MIB // 2
        if self._more and low and self._fetching is None and self._failure is None:
            self._fetching = asyncio.create_task(self._fetch(self._look))

    def _fetched(self) -> None:
        if self._fetching is not None:
            fetched, self._fetching = self._fetching, None
            fetched.result()

    async def _fetch(self, ask: Callable[[], Awaitable[None]]) -> None:
        """Ask. A failure is raised once everything that was fetched before it has been returned."""
        try:
            await ask()
        except NotaryError as failure:
            self._failure = failure
            self._session.hang_up()

    async def _until_ready(self, wait_s: float) -> None:
        """Ask until a record may be returned, or `wait_s` is over."""
        loop = asyncio.get_running_loop()
        until_s, pause_s = loop.time() + wait_s, FLUSH_POLL_S
        while not self._closed and not self._delivery.ready:
            if self._delivery.holds or not self._current:
                await self._look()
            left_s = until_s - loop.time()
            if self._delivery.ready:
                return
            if left_s <= 0:
                self._current = False  # the next read looks
                return
            if self._delivery.holds:  # no notification says when the standbys have it
                await asyncio.sleep(min(pause_s, left_s))
                pause_s = min(2 * pause_s, self._settings.poll_every_s)
            elif self._current and await self._session.heard(min(self._settings.poll_every_s, left_s)):
                self._current = False

    async def _look(self) -> None:
        """Look once: at the standbys' positions and, unless too much is held, at the next batches."""
        room = self._settings.read_ahead_mib * MIB - self._delivery.held_bytes - self._delivery.ready_bytes
        standbys = self._settings.standbys
        if room <= 0:
            self._delivery.release(await self._session.flushed(standbys))
            return
        self._looking = self._current = True
        try:
            look = await self._session.look(self._delivery.next_batch, room, standbys, self._delivery.holds)
        finally:
            self._looking = False
        if look.log_id != self._log_id:
            raise LogRefused(f"the log was created anew: its id is {look.log_id}, it was {self._log_id}")
        self._delivery.see(look)
        self._delivery.release(look.flushed)
        self._more = look.end_offset > self._delivery.next_batch
        self._current = self._current and not self._more
