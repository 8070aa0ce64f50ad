"""The Unix-socket form of the link: a server in the core process, a client in every front-end process.

Both batch: a front end sends what it took in one turn of its event loop as one frame, and the core answers as many
tickets at a time as it likes. The core speaks several times a second, so a front end notices a core that hangs.
"""

from __future__ import annotations

import asyncio
import hmac
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import cast

import msgspec
import structlog

from replica.link.bell import Bell
from replica.link.counts import ApiCounts
from replica.link.frames import (
    PROTOCOL,
    Answers,
    FrameProtocol,
    FromCore,
    FromFrontEnd,
    Hello,
    LinkBroken,
    LookUp,
    Report,
    Submit,
    Wait,
    Word,
    encode_batch,
    encode_frame,
)
from replica.link.interface import (
    PLAIN,
    Handler,
    Standing,
    Terms,
    TicketedAnswer,
    TicketedLookUp,
    TicketedSubmission,
    Told,
    refuse_as_overloaded,
    refuse_as_passive,
)
from replica.link.settings import LinkSettings
from replica.link.tickets import Call, Tickets
from replica.notary.answers import Answer, NotNow, StateStatus
from replica.notary.errors import ConfigError
from replica.notary.requests import Submission

EXPIRY_INTERVALS = 20  # how often within `answer_max_s` old calls are looked for: the deadline is that much coarse
_PATH_MAX_BYTES = 107  # of the kernel
_SUBMISSION_OVERHEAD_BYTES = 1_024  # what a submission has beside its canonical bytes, roughly
_log = structlog.get_logger(__name__)


class LinkServer:
    """The core's end: listens for the front ends of its own generation, which are to end when it does."""

    def __init__(self, path: Path, generation: str, handler: Handler, settings: LinkSettings) -> None:
        self.generation = generation
        self.handler = handler
        self.settings = settings
        self._path = path
        self._connections: set[_FrontEnd] = set()
        self._ended = ApiCounts()  # what front ends had counted that are gone
        self._server: asyncio.Server | None = None
        self._keep_alive: asyncio.Task[None] | None = None

    @property
    def front_ends(self) -> tuple[str, ...]:
        """Names of the front ends that are connected and were let in."""
        return tuple(sorted(connection.name for connection in self._connections if connection.name))

    async def start(self) -> None:
        """Listen, for this user only. What an earlier core left at the path is replaced. Raises ConfigError."""
        if len(os.fsencode(self._path)) > _PATH_MAX_BYTES:
            raise ConfigError(f"a Unix socket's path has at most {_PATH_MAX_BYTES} bytes: {self._path}")
        self._path.unlink(missing_ok=True)
        mask = os.umask(0o177)
        try:
            self._server = await asyncio.get_running_loop().create_unix_server(lambda: _FrontEnd(self), str(self._path))
        finally:
            os.umask(mask)
        self._keep_alive = asyncio.create_task(self._announce_for_ever(), name="link keep-alive")

    async def stop(self) -> None:
        """Cut all front ends and stop listening. May be repeated."""
        if self._keep_alive is not None:
            self._keep_alive.cancel()
        if self._server is not None:
            self._server.close()
            self._server = None
            self._path.unlink(missing_ok=True)
        for connection in list(self._connections):
            connection.cut("the core stops")

    def announce(self) -> None:
        """Tell every front end the handler's standing: to be called whenever it changes."""
        word = encode_frame(Word(self.handler.standing()), self.settings.frame_max_bytes)
        for connection in self._connections:
            connection.tell(word)

    def api_counts(self) -> ApiCounts:
        """What the front ends of this generation have counted, those that ended included."""
        total = ApiCounts()
        for counts in (self._ended, *(connection.counts for connection in self._connections)):
            total.add(counts)
        return total

    def opened(self, connection: _FrontEnd) -> None:
        """A connection was made. Raises LinkBroken when there are too many."""
        if len(self._connections) >= self.settings.front_ends_max:
            raise LinkBroken(f"{self.settings.front_ends_max} front ends are connected, which is the limit")
        self._connections.add(connection)

    def closed(self, connection: _FrontEnd) -> None:
        """A connection ended; what it counted is kept, and its gauges are zero from now on."""
        self._connections.discard(connection)
        counts = connection.counts
        counts.connections = counts.in_flight = counts.streams = 0
        self._ended.add(counts)

    async def _announce_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self.settings.keep_alive_s)
            self.announce()


class _FrontEnd(FrameProtocol[FromFrontEnd]):
    """The core's view of one front end; it is the `Replies` of what comes from there."""

    def __init__(self, server: LinkServer) -> None:
        super().__init__(msgspec.msgpack.Decoder(FromFrontEnd), server.settings.frame_max_bytes)
        self.name = ""  # known once it was let in
        self.counts = ApiCounts()
        self._server = server
        self._open_tickets = 0
        self._writing_paused = False
        self._hello_due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        loop, settings = asyncio.get_running_loop(), self._server.settings
        try:
            self._server.opened(self)
        except LinkBroken as error:
            self.cut(str(error))
            return
        self._hello_due = loop.call_later(settings.hello_max_s, self.cut, "no hello in time")

    def connection_lost(self, exc: Exception | None) -> None:
        if self._hello_due is not None:
            self._hello_due.cancel()
        self._server.closed(self)
        _log.info("front_end_gone", front_end=self.name, why=self.broken or "it closed the connection")

    def pause_writing(self) -> None:
        self._writing_paused = True

    def resume_writing(self) -> None:
        self._writing_paused = False

    def received(self, frame: FromFrontEnd) -> None:
        if isinstance(frame, Hello):
            self._let_in(frame)
        elif not self.name:
            raise LinkBroken("no hello")
        elif isinstance(frame, Submit):
            self._take_tickets(len(frame.batch))
            self._server.handler.submit(self, frame.batch, frame.terms)
        elif isinstance(frame, LookUp):
            self._take_tickets(len(frame.batch))
            self._server.handler.look_up(self, frame.batch)
        else:
            self.counts = frame.counts

    def send(self, answers: Sequence[TicketedAnswer]) -> None:
        """One write for all of them. Their volume is bounded by the tickets that a front end may have open."""
        if self.transport is None or self.transport.is_closing():
            return
        self._open_tickets -= len(answers)
        try:
            frames = list(encode_batch(Answers, answers, self._server.settings.frame_max_bytes))
        except LinkBroken as error:
            self.cut(str(error))
            return
        self.transport.write(frames[0] if len(frames) == 1 else b"".join(frames))

    def wait(self, tickets: Sequence[int], wait_s: float) -> None:
        """See Replies. Left out for a front end that does not read: it is told nothing new anyway."""
        if self.transport is not None and not self.transport.is_closing() and not self._writing_paused:
            self.transport.write(encode_frame(Wait(list(tickets), wait_s), self._server.settings.frame_max_bytes))

    def tell(self, word: bytes) -> None:
        """Pass the core's word on; a front end that does not read gets none, and so counts the core as passive."""
        if self.name and self.transport is not None and not self._writing_paused:
            self.transport.write(word)

    def _let_in(self, hello: Hello) -> None:
        server = self._server
        if self.name or not hello.name or hello.protocol != PROTOCOL:
            raise LinkBroken(f"a hello that does not fit, protocol {hello.protocol}")
        if not hmac.compare_digest(hello.generation.encode(), server.generation.encode()):
            raise LinkBroken("a front end of another core generation")
        self.name = hello.name
        if self._hello_due is not None:
            self._hello_due.cancel()
        welcome = encode_frame(Hello(PROTOCOL, server.generation, "core"), server.settings.frame_max_bytes)
        self.tell(welcome + encode_frame(Word(server.handler.standing()), server.settings.frame_max_bytes))

    def _take_tickets(self, count: int) -> None:
        self._open_tickets += count
        if self._open_tickets > self._server.settings.tickets_max:
            raise LinkBroken(f"{self._open_tickets} tickets open, the limit is {self._server.settings.tickets_max}")


class LinkClient(FrameProtocol[FromCore]):
    """A front end's end, and the `CoreLink` that it serves from. One connection in its life: it ends with it."""

    def __init__(self, path: Path, generation: str, name: str, settings: LinkSettings) -> None:
        super().__init__(msgspec.msgpack.Decoder(FromCore), settings.frame_max_bytes)
        self._path = path
        self._hello = Hello(PROTOCOL, generation, name)
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._tickets = Tickets(settings.answer_max_s)
        self._standing = Standing(False, 0, settings.standing_max_age_s)
        self.news = Bell()
        self._heard_at_s = float("-inf")
        self._welcome = asyncio.Event()
        self._ended = asyncio.Event()
        self._submissions: dict[Terms, list[TicketedSubmission]] = {}
        self._look_ups: list[TicketedLookUp] = []
        self._queued_bytes = 0
        self._writing_paused = False
        self._expiry: asyncio.Task[None] | None = None

    @property
    def standing(self) -> Standing:
        """The core's newest word; passive once the core has not been heard for `standing_max_age_s`."""
        standing = self._standing
        if standing.active and self._loop.time() - self._heard_at_s > self._settings.standing_max_age_s:
            return standing.as_passive()
        return standing

    async def connect(self) -> None:
        """Connect and be let in. Raises LinkBroken when the core is not there, or not of our generation."""
        try:
            async with asyncio.timeout(self._settings.hello_max_s):
                await self._loop.create_unix_connection(lambda: self, str(self._path))
                await self._welcome.wait()
        except (OSError, TimeoutError) as error:  # a TimeoutError is an OSError, but that is not ours to rely on
            raise LinkBroken(f"no link to the core at {self._path}: {error!r}") from None
        if self._ended.is_set():
            raise LinkBroken(f"the core does not let us in: {self.broken or 'it closed the connection'}")
        self._expiry = asyncio.create_task(self._expire_for_ever(), name="link expiry")

    async def wait_ended(self) -> str:
        """Wait for the end of the link; returns why. Whatever waited for an answer has been answered by then."""
        await self._ended.wait()
        return self.broken or "the core closed the connection"

    def close(self) -> None:
        """End the link once what was written is out. May be repeated."""
        if self.transport is not None:
            self.transport.close()

    def report(self, counts: ApiCounts) -> None:
        """Tell the core what this front end has counted so far."""
        if self.transport is not None and not self._ended.is_set() and not self._writing_paused:
            self.transport.write(encode_frame(Report(counts), self._settings.frame_max_bytes))

    async def submit(
        self,
        submissions: Sequence[Submission],
        terms: Terms = PLAIN,
        on_wait: Callable[[float], None] | None = None,
    ) -> list[Answer]:
        """See CoreLink. A core that has as much from us as it takes is not asked: OVERLOADED."""
        if not submissions:
            return []
        refusal = self._refusal(len(submissions))
        if refusal is not None:
            return [refusal] * len(submissions)
        call = self._open(len(submissions), on_wait)
        queue = self._submissions.setdefault(terms, [])
        for ticket, submission in enumerate(submissions, call.first):
            queue.append((ticket, submission))
            self._queued_bytes += len(submission.request) + _SUBMISSION_OVERHEAD_BYTES
        return cast("list[Answer]", await call.future)

    async def look_up(self, tx_id: bytes) -> Answer:
        """See CoreLink."""
        return cast(Answer, await self._ask(tx_id))

    async def look_up_state(self, state: bytes) -> StateStatus | NotNow:
        """See CoreLink."""
        return cast("StateStatus | NotNow", await self._ask(state))

    async def _ask(self, name: bytes) -> Told:
        refusal = self._refusal(1)
        if refusal is not None:
            return refusal
        call = self._open(1)
        self._look_ups.append((call.first, name))
        return (await call.future)[0]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self.transport is not None
        self.transport.set_write_buffer_limits(high=self._settings.buffer_max_bytes)
        self.transport.write(encode_frame(self._hello, self._settings.frame_max_bytes))

    def connection_lost(self, exc: Exception | None) -> None:
        self._standing = self._standing.as_passive()
        self.news.ring()
        self._ended.set()
        self._welcome.set()
        self._submissions, self._look_ups = {}, []
        self._tickets.abandon()
        if self._expiry is not None:
            self._expiry.cancel()

    def pause_writing(self) -> None:
        self._writing_paused = True

    def resume_writing(self) -> None:
        self._writing_paused = False

    def received(self, frame: FromCore) -> None:
        self._heard_at_s = self._loop.time()
        if isinstance(frame, Hello):
            if not hmac.compare_digest(frame.generation.encode(), self._hello.generation.encode()):
                raise LinkBroken("a core of another generation")
            self._welcome.set()
        elif not self._welcome.is_set():
            raise LinkBroken("no hello")
        elif isinstance(frame, Answers):
            self._tickets.settle(frame.batch)
        elif isinstance(frame, Wait):
            self._tickets.prolong(frame.tickets, frame.wait_s)
        elif frame.standing != self._standing:
            self._standing = frame.standing
            self.news.ring()

    def _refusal(self, count: int) -> Answer | None:
        standing = self.standing
        if not standing.active:
            return refuse_as_passive(standing)
        too_many = self._tickets.open_count + count > self._settings.tickets_max
        if too_many or self._writing_paused or self._queued_bytes > self._settings.buffer_max_bytes:
            return refuse_as_overloaded(standing, "the core has as much from this front end as it takes")
        return None

    def _open(self, count: int, on_wait: Callable[[float], None] | None = None) -> Call:
        """Take tickets; what is queued goes out as one frame once this turn of the event loop is over."""
        if not self._submissions and not self._look_ups:
            self._loop.call_soon(self._flush)
        return self._tickets.open(count, on_wait)

    def _flush(self) -> None:
        submissions, look_ups = self._submissions, self._look_ups
        self._submissions, self._look_ups, self._queued_bytes = {}, [], 0
        if self.transport is None or self.transport.is_closing():
            return  # all of them were answered when the link ended
        frame_max_bytes, frames = self._settings.frame_max_bytes, list[bytes]()
        try:
            for terms, batch in submissions.items():
                frames.extend(encode_batch(partial(_submit, terms), batch, frame_max_bytes))
            if look_ups:
                frames.extend(encode_batch(LookUp, look_ups, frame_max_bytes))
        except LinkBroken as error:
            self.cut(str(error))
            return
        self.transport.write(frames[0] if len(frames) == 1 else b"".join(frames))

    async def _expire_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._settings.answer_max_s / EXPIRY_INTERVALS)
            self._tickets.expire()
            if self._standing.active and not self.standing.active:
                self.news.ring()  # silence is news as well


def _submit(terms: Terms, batch: list[TicketedSubmission]) -> Submit:
    return Submit(batch, terms)
