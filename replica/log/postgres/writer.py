"""Appends to the request log on Postgres: one statement in progress, and what arrives meanwhile together."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

import structlog

from replica.log.postgres.delivery import Bounds, Look
from replica.log.postgres.session import ServerIdentity, Session
from replica.log.postgres.settings import CLOSE_MAX_S, MIB, PostgresLogSettings
from replica.notary.errors import LogRefused, LogUnavailable, NotaryError
from replica.notary.records import check_sizes

log = structlog.get_logger()

IDLE_LOOK_S = 60.0  # of a writer that nobody gives anything
RECONNECT_S = 0.05  # between two tries of a writer whose connection has ended


class PostgresWriter:
    """A `LogWriter` with its own connection and one statement in progress. Appends made meanwhile are sent together.

    The first append that is not known to be in the log ends the writer. Neither it nor anything after it is sent again.
    A connection that ends between two appends is replaced, while nobody asks: nothing is in doubt then.
    """

    def __init__(
        self,
        session: Session,
        bounds: Bounds,
        settings: PostgresLogSettings,
        *,
        reopen: Callable[[int], Awaitable[tuple[Session, Bounds]]],
        on_append: Callable[[ServerIdentity, Look], None],
        on_close: Callable[[PostgresWriter], None],
    ) -> None:
        self._session = session
        self._log_id = bounds.log_id
        self._partition_records = bounds.partition_records
        self._end = bounds.end_offset  # of the log, as far as this writer knows
        self._settings = settings
        self._reopen = reopen
        self._is_connected = True
        self._on_append = on_append
        self._on_close = on_close
        self._queue: deque[bytes] = deque()
        self._unanswered_count = 0  # records, including those of the statement in progress
        self._unanswered_bytes = 0
        self._failed_count = 0
        self._over = ""  # why nothing more is accepted
        self._appending = asyncio.create_task(self._append_for_ever())

    @property
    def identity(self) -> ServerIdentity:
        """The server that it appends to."""
        return self._session.identity

    @property
    def backend(self) -> int:
        """The server's process for its session."""
        return self._session.backend

    def leave(self, why: NotaryError) -> None:
        """Append nothing more on this server."""
        self._give_up(why)

    @property
    def failed_count(self) -> int:
        """See `LogWriter.failed_count`. Does not count what `close` purges."""
        return self._failed_count

    @property
    def has_ended(self) -> bool:
        """See `LogWriter.has_ended`: also once the server has hung up, and takes no other connection."""
        return bool(self._over)

    @property
    def is_connected(self) -> bool:
        """See `LogWriter.is_connected`."""
        return self._is_connected and not self._over

    def append(self, value: bytes) -> None:
        """See `LogWriter.append`."""
        self.append_all([value])

    def append_all(self, values: Sequence[bytes]) -> None:
        """See `LogWriter.append_all`: accepts all values, or none."""
        if self._over:
            raise LogUnavailable(self._over)
        check_sizes(values)
        count, size = self._unanswered_count + len(values), self._unanswered_bytes + sum(map(len, values))
        if count > self._settings.append_queue_max or size > self._settings.append_queue_max_mib * MIB:
            raise LogUnavailable("the queue of records that the log's server has not answered is full")
        self._queue.extend(values)
        self._unanswered_count, self._unanswered_bytes = count, size
        self._session.wake()

    async def close(self) -> None:
        """See `LogWriter.close`."""
        self._over = self._over or "the writer is closed"
        self._queue.clear()
        self._session.hang_up()
        if not self._is_connected:
            self._appending.cancel()
        await asyncio.wait([self._appending], timeout=CLOSE_MAX_S)
        self._session.hang_up()
        self._on_close(self)

    async def _append_for_ever(self) -> None:
        try:
            while not self._over:
                while batch := self._next_batch():
                    await self._append(batch)
                    if 1 < len(self._queue) < self._settings.append_batch_max // 2:
                        await asyncio.sleep(self._settings.append_linger_s)
                try:  # fails when the server hangs up: nobody need append to learn it
                    await self._session.heard(IDLE_LOOK_S)
                except LogUnavailable as failure:
                    await self._connect_again(failure)
        except NotaryError as failure:
            self._give_up(failure)
        except Exception as error:  # a bug: it must not leave a writer that accepts records and sends none
            self._give_up(LogUnavailable(repr(error)))
            raise

    async def _connect_again(self, failure: LogUnavailable) -> None:
        """Another connection to the same server. Raises what ended the last one where there is none in time."""
        loop, identity, self._is_connected = asyncio.get_running_loop(), self.identity, False
        log.info("log_writer_connects_again", detail=failure.detail)
        self._session.hang_up()
        until_s = loop.time() + self._settings.answer_max_s
        while not self._over:
            try:
                async with asyncio.timeout(max(0.0, until_s - loop.time())):
                    session, bounds = await self._reopen(self.backend)
            except (LogUnavailable, TimeoutError):
                if loop.time() >= until_s:
                    raise failure from None
                await asyncio.sleep(RECONNECT_S)
                continue
            if self._over or session.identity != identity or bounds.end_offset < self._end:
                session.hang_up()
                raise failure
            self._session, self._end, self._is_connected = session, bounds.end_offset, True
            return

    def _next_batch(self) -> list[bytes]:
        """The next batch: the first record, and as many more as the limits allow."""
        batch: list[bytes] = []
        room = self._settings.append_batch_max_mib * MIB
        while self._queue and len(batch) < self._settings.append_batch_max and room >= len(self._queue[0]):
            batch.append(self._queue.popleft())
            room -= len(batch[-1])
        return batch

    async def _append(self, batch: Sequence[bytes]) -> None:
        answer = await self._session.append(self._log_id, batch, self._settings.standbys)
        first = answer.first_offset
        self._unanswered_count -= len(batch)
        self._unanswered_bytes -= sum(map(len, batch))
        if first < self._end:
            raise LogRefused(f"the log's head went back: an append got offset {first}, the log went to {self._end}")
        self._on_append(self.identity, answer.look(self._log_id, batch))
        before, self._end = self._end, first + len(batch)
        if before // self._partition_records != self._end // self._partition_records:
            await make_room(self._session)

    def _give_up(self, failure: NotaryError) -> None:
        """Unanswered records have an unknown outcome. Records queued after them are not sent: a gap would precede."""
        self._session.hang_up()
        if not self._over:
            self._over = f"the writer has failed: {failure.detail}"
            self._failed_count += self._unanswered_count
            self._queue.clear()
            tell = log.warning if self._failed_count else log.info
            tell("log_append_failed", count=self._failed_count, detail=failure.detail)


async def make_room(session: Session) -> None:
    """Have partitions made ahead. A failure here is harmless: when room runs out, the append reports it."""
    try:
        await session.make_partitions()
    except NotaryError as failure:
        log.warning("log_partitions_not_made", detail=failure.detail)
