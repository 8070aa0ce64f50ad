"""The request log on Postgres: questions about it, and which server it is on. Its reader and its writer are beside it.

One row of the server, the head, gives the order. Its lock is held until the commit is visible, so no batch can appear
before one that was read. Readers poll; a notification only saves them the wait for the next poll. What a writer has
just committed is offered to the readers of the same `PostgresLog`, as if they had looked at that moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

import structlog

from replica.log.admin import LogSurvey
from replica.log.interface import RoundTrip
from replica.log.postgres.delivery import Bounds, Delivery, Look
from replica.log.postgres.reader import FLUSH_POLL_S, PostgresReader
from replica.log.postgres.session import Admit, ServerIdentity, Session, connect
from replica.log.postgres.settings import PostgresLogSettings
from replica.log.postgres.writer import PostgresWriter, make_room
from replica.notary.codes import Code
from replica.notary.errors import LogRefused, LogTruncated, LogUnavailable, NotaryError

log = structlog.get_logger()


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
            await make_room(session)
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
