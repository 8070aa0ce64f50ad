"""The request log on Postgres: its reader, its writer, and questions about it.

One row of the server, the head, gives the order. Its lock is held until the commit is visible, so no batch can appear
before one that was read. Readers poll; a notification only saves them the wait for the next poll. What a writer has
just committed is offered to the readers of the same `PostgresLog`, as if they had looked at that moment.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

import structlog

from replica.log.admin import LogSurvey
from replica.log.interface import LogRecords, RoundTrip
from replica.log.postgres.delivery import Bounds, Delivery, Look
from replica.log.postgres.session import Admit, ServerIdentity, Session, connect
from replica.log.postgres.settings import CLOSE_MAX_S, PostgresLogSettings
from replica.notary.codes import Code
from replica.notary.errors import LogRefused, LogTruncated, LogUnavailable, NotaryError
from replica.notary.records import check_sizes

log = structlog.get_logger()

IDLE_LOOK_S = 60.0  # of a writer that nobody gives anything
RECONNECT_S = 0.05  # between two tries of a writer whose connection has ended
FLUSH_POLL_S = 0.001  # first wait for the standbys; doubled up to `poll_every_s`
MIB = 1 << 20

T = TypeVar("T")
Connect = Callable[[PostgresLogSettings, Admit], Awaitable[Session]]


class PostgresLog:
    """A `RequestLog` on one Postgres database. Connects when first asked.

    `end_offset` is the end for readers: everything below it is replicated. `agreed_end_offset` is the head's end,
    replicated or not; it is asked before records are declared gone.
    """

    def __init__(self, settings: PostgresLogSettings, connect: Connect = connect) -> None:
        self._settings = settings
        self._connect = connect
        self._server = ServerOfLog()
        self._log_id: str | None = None
        self._asker: Session | None = None
        self._turn = asyncio.Lock()
        self._open: dict[PostgresReader | PostgresWriter, None] = {}  # ordered: a simulated run can be repeated
        self._own_backends: set[int] = set()  # of the open writers, whose appends are offered
        if settings.single_server:
            log.warning(
                "single_server_log", detail="development only: acknowledged records are lost with this server's disk"
            )

    @property
    def answer_times(self) -> Mapping[str, RoundTrip]:
        """See `RequestLog.answer_times`: nothing is measured."""
        return {}

    @property
    def database(self) -> str | None:
        """See `LogInDatabase.database`."""
        return None if self._server.known is None else str(self._server.known)

    def require_database(self, named: str) -> None:
        """See `LogInDatabase.require_database`."""
        self._server.require(named)
        self._leave_older_servers()

    async def check(self) -> str:
        """See `RequestLog.check`: the identity is `postgres:` and the log's id."""
        if broken := await self._ask(lambda session: session.violations(self._settings.standbys)):
            raise LogRefused("; ".join(broken), Code.TOPIC_UNSAFE)
        bounds = await self._bounds()
        bounds.require_whole()
        if bounds.first:
            raise LogTruncated(f"the log begins at offset {bounds.first}: the records before are gone")
        self._log_id = bounds.log_id
        return f"postgres:{bounds.log_id}"

    async def hazards(self) -> Sequence[str]:
        """See `RequestLog.hazards`."""
        broken = list(await self._ask(lambda session: session.violations(self._settings.standbys)))
        first = (await self._bounds()).first
        return [*broken, *([f"it begins at offset {first}: the records before are gone"] if first else [])]

    async def survey(self) -> LogSurvey:
        """See `LogAdmin.survey`. `deletable`: whether this login could; the owner may drop it at any time."""
        broken = await self._ask(lambda session: session.violations(self._settings.standbys))
        bounds = await self._bounds()
        return LogSurvey(
            log_id=f"postgres:{bounds.log_id}",
            first_offset=bounds.first,
            end_offset=await self.end_offset(),
            violations=broken,
            deletable=await self._ask(lambda session: session.may_harm()),
            database=str(self._server.known),
            oldest_snapshot=await self._ask(lambda session: session.oldest_snapshot()),
        )

    async def standby_count(self, count_max: int) -> int:
        """How many standbys have any WAL of the log's server on disk, at most `count_max`."""
        for count in range(1, count_max + 1):
            if await self._flushed(count) is None:
                return count - 1
        return count_max

    async def end_offset(self) -> int:
        """The end of what readers can read. Waits until everything appended by now is replicated.

        Raises LogUnavailable when that takes longer than `answer_max_s`, and LogRefused for another log.
        """
        bounds = await self._known_bounds()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.answer_max_s):
                await self._until_flushed(bounds.position)
                return bounds.end_offset
        raise LogUnavailable(f"the standbys lack records below offset {bounds.end_offset}")

    async def agreed_end_offset(self) -> int:
        """See `RequestLog.agreed_end_offset`. A server on an older timeline than the known one does not count."""
        return (await self._known_bounds()).end_offset

    async def open_reader(self, start_offset: int) -> PostgresReader:
        """See `RequestLog.open_reader`."""
        session = await self._session()
        try:
            await self._require_visible(session)
            await session.listen(self._own_backends)
            bounds = await session.bounds(start_offset)
            self._confirm(bounds)
            bounds.require_offset(start_offset)
            bounds.require_whole()
        except BaseException:
            session.hang_up()
            raise
        delivery = Delivery(start_offset, bounds.first_batch(start_offset))
        reader = PostgresReader(session, bounds.log_id, delivery, self._settings, self._closed)
        self._open[reader] = None
        return reader

    async def open_writer(self) -> PostgresWriter:
        """See `RequestLog.open_writer`."""
        session, bounds = await self._to_write()
        writer = PostgresWriter(
            session, bounds, self._settings, reopen=self._to_write, on_append=self._offer, on_close=self._closed
        )
        self._open[writer] = None
        return writer

    async def _to_write(self, instead_of: int = 0) -> tuple[Session, Bounds]:
        """A session to append on; `instead_of`: the backend of one that has ended."""
        self._own_backends.discard(instead_of)
        session = await self._session()
        try:
            await self._require_visible(session)
            await _make_room(session)
            bounds = await session.bounds(0)
            self._confirm(bounds)
            bounds.require_whole()
        except BaseException:
            session.hang_up()
            raise
        self._own_backends.add(session.backend)
        return session, bounds

    async def close(self) -> None:
        """See `RequestLog.close`."""
        await asyncio.gather(*[handle.close() for handle in self._open])
        if self._asker is not None:
            self._asker.hang_up()
            self._asker = None

    def _offer(self, identity: ServerIdentity, look: Look) -> None:
        """A writer on this server has an answer: its own readers need not ask for what it sent."""
        for handle in tuple(self._open):
            if isinstance(handle, PostgresReader) and handle.identity == identity:
                handle.offer(look)

    def _closed(self, handle: PostgresReader | PostgresWriter) -> None:
        self._open.pop(handle, None)
        if isinstance(handle, PostgresWriter):
            self._own_backends.discard(handle.backend)

    async def _require_visible(self, session: Session) -> None:
        """Raise unless the standbys are visible. Otherwise no record would ever be delivered, without any error."""
        if broken := await session.violations(self._settings.standbys):
            raise LogRefused("; ".join(broken), Code.TOPIC_UNSAFE)

    async def _until_flushed(self, position: int) -> None:
        pause_s = FLUSH_POLL_S
        while True:
            flushed = await self._flushed(self._settings.standbys)
            if flushed is not None and flushed >= position:
                return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, self._settings.poll_every_s)

    async def _flushed(self, standbys: int) -> int | None:
        return await self._ask(lambda session: session.flushed(standbys))

    async def _known_bounds(self) -> Bounds:
        bounds = await self._bounds()
        self._confirm(bounds)
        return bounds

    async def _bounds(self) -> Bounds:
        return await self._ask(lambda session: session.bounds(0))

    async def _ask(self, question: Callable[[Session], Awaitable[T]]) -> T:
        """Ask on the connection for questions. A failure ends that connection."""
        async with self._turn:
            was_open = self._asker is not None
            try:
                return await self._ask_once(question)
            except LogUnavailable:
                if not was_open:  # else the connection may have ended long ago, while nobody asked
                    raise
            return await self._ask_once(question)

    async def _ask_once(self, question: Callable[[Session], Awaitable[T]]) -> T:
        if self._asker is None:
            self._asker = await self._session()
        try:
            return await question(self._asker)
        except BaseException:
            if self._asker is not None:
                self._asker.hang_up()
            self._asker = None
            raise

    async def _session(self) -> Session:
        session = await self._connect(self._settings, self._server.judge)
        try:
            self._server.admit(session.identity)  # again: another connection may have found a later timeline meanwhile
        except NotaryError:
            session.hang_up()
            raise
        self._leave_older_servers()
        return session

    def _leave_older_servers(self) -> None:
        """End what is connected to a primary that is known to be old."""
        for handle in tuple(self._open):
            if failure := self._server.refusal(handle.identity):
                handle.leave(failure)
        if self._asker is not None and self._server.refusal(self._asker.identity):
            self._asker.hang_up()
            self._asker = None

    def _confirm(self, bounds: Bounds) -> None:
        if self._log_id is None:
            self._log_id = bounds.log_id
        if bounds.log_id != self._log_id:
            raise LogRefused(f"the log was created anew: its id is {bounds.log_id}, it was {self._log_id}")


class ServerOfLog:
    """Which server the log is on: the system never changes, and timelines only rise. Pure."""

    def __init__(self) -> None:
        self.known: ServerIdentity | None = None
        self._timelines: dict[str, int] = {}  # the newest known of each system

    def require(self, named: str) -> None:
        """This database has granted an epoch: a server of its system on an earlier timeline is an old primary.

        Named as in a barrier. A name of another kind says nothing about the log's server.
        """
        if identity := ServerIdentity.parse(named):
            self._require(identity)

    def refusal(self, identity: ServerIdentity) -> NotaryError | None:
        """Why a session on this server is not to be used: it is another system, or an old primary. None: it may be."""
        if self.known is not None and identity.system_identifier != self.known.system_identifier:
            return LogRefused(
                f"the log's server is another system: {identity.system_identifier}, it was "
                f"{self.known.system_identifier}"
            )
        newest = self._timelines.get(identity.system_identifier, 0)
        if identity.timeline < newest:
            return LogUnavailable(f"an old primary answers: its timeline is {identity.timeline}, {newest} was seen")
        return None

    def judge(self, identity: ServerIdentity) -> None:
        """Raise LogUnavailable for an old primary, LogRefused for another system."""
        if refusal := self.refusal(identity):
            raise refusal

    def admit(self, identity: ServerIdentity) -> None:
        """Take a session's server for the log's from now on. Raises as `judge` does."""
        self.judge(identity)
        self._require(identity)
        self.known = identity

    def _require(self, identity: ServerIdentity) -> None:
        newest = self._timelines.get(identity.system_identifier, 0)
        self._timelines[identity.system_identifier] = max(newest, identity.timeline)


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
            await _make_room(self._session)

    def _give_up(self, failure: NotaryError) -> None:
        """Unanswered records have an unknown outcome. Records queued after them are not sent: a gap would precede."""
        self._session.hang_up()
        if not self._over:
            self._over = f"the writer has failed: {failure.detail}"
            self._failed_count += self._unanswered_count
            self._queue.clear()
            tell = log.warning if self._failed_count else log.info
            tell("log_append_failed", count=self._failed_count, detail=failure.detail)


async def _make_room(session: Session) -> None:
    """Have partitions made ahead. A failure here is harmless: when room runs out, the append reports it."""
    try:
        await session.make_partitions()
    except NotaryError as failure:
        log.warning("log_partitions_not_made", detail=failure.detail)
