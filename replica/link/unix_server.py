"""The core's end of the link: a Unix socket, with one connection for each front end.

The core answers any number of tickets at a time. It repeats its report several times a second, so that a front end
detects a core that hangs.
"""

from __future__ import annotations

import asyncio
import hmac
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import structlog

from replica.link.frames import (
    PROTOCOL,
    Answers,
    AskLog,
    FrameProtocol,
    FromFrontEnd,
    Hello,
    LinkBroken,
    LookUp,
    Peers,
    Submit,
    Wait,
    Word,
    encode_batch,
    encode_frame,
)
from replica.link.interface import Handler, PeerSeen, TicketedAnswer
from replica.link.settings import LinkSettings
from replica.notary.socket_paths import check_socket_path
from replica.telemetry.counts import ApiCounts

_log = structlog.get_logger(__name__)


class LinkServer:
    """Listens for the front ends of this core's generation. They end when the core ends."""

    def __init__(self, path: Path, generation: str, handler: Handler, settings: LinkSettings) -> None:
        self.generation = generation
        self.handler = handler
        self.settings = settings
        self._path = path
        self._connections: set[_FrontEnd] = set()
        self._ended = ApiCounts()  # counts of front ends that are gone
        self._peers: Sequence[PeerSeen] = ()
        self._server: asyncio.Server | None = None
        self._keep_alive: asyncio.Task[None] | None = None

    @property
    def front_ends(self) -> tuple[str, ...]:
        """Names of the front ends that were let in and are heard: a connection alone answers nobody."""
        return tuple(sorted(one.name for one in self._named() if one.silent_s < self.settings.front_end_silent_s))

    @property
    def silent_front_ends(self) -> tuple[str, ...]:
        """Names of those that are connected and not heard."""
        return tuple(sorted(one.name for one in self._named() if one.silent_s >= self.settings.front_end_silent_s))

    def silence_s(self, name: str) -> float | None:
        """For how long a front end was not heard, while this core itself ran; None: it is not connected."""
        return next((one.silent_s for one in self._named() if one.name == name), None)

    def _named(self) -> Iterator[_FrontEnd]:
        return (one for one in self._connections if one.name)

    async def start(self) -> None:
        """Listen, for this user only. Replaces what an earlier core left at the path. Raises ConfigError."""
        check_socket_path(self._path)
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
        """Send the handler's standing to every front end. To be called whenever it changes."""
        word = encode_frame(Word(self.handler.standing()), self.settings.frame_max_bytes)
        for connection in self._connections:
            connection.announce(word)

    def announce_peers(self, seen: Sequence[PeerSeen]) -> None:
        """Send to every front end, also to those that come later, what was seen of the other replicas."""
        self._peers = seen
        told = self.peers_frame()
        for connection in self._connections:
            connection.announce(told)

    def peers_frame(self) -> bytes:
        """What was last seen of the other replicas, as a frame."""
        return encode_frame(Peers(list(self._peers)), self.settings.frame_max_bytes)

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
        """A connection ended. Its counts are kept, and its gauges become zero."""
        self._connections.discard(connection)
        counts = connection.counts
        counts.connections = counts.in_flight = counts.streams = 0
        counts.certificate_expires_s = 0.0
        self._ended.add(counts)

    async def _announce_for_ever(self) -> None:
        loop, keep_alive_s = asyncio.get_running_loop(), self.settings.keep_alive_s
        while True:
            asked_s = loop.time()
            await asyncio.sleep(keep_alive_s)
            for connection in self._connections:
                connection.silent_s += counted_s(loop.time() - asked_s, keep_alive_s)
            self.announce()


def counted_s(passed_s: float, pause_s: float) -> float:
    """How much of the time since the last look counts as the other side's silence. If we stood still ourselves, what it
    sent meanwhile is read only after this look."""
    return min(passed_s, 2 * pause_s)


class _FrontEnd(FrameProtocol[FromFrontEnd]):
    """The connection of one front end. It is the `Replies` for the questions of this front end."""

    def __init__(self, server: LinkServer) -> None:
        super().__init__(msgspec.msgpack.Decoder(FromFrontEnd), server.settings.frame_max_bytes)
        self.name = ""  # known once it was let in
        self.counts = ApiCounts()
        self.silent_s = 0.0
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
        self.silent_s = 0.0
        if isinstance(frame, Hello):
            self._let_in(frame)
        elif not self.name:
            raise LinkBroken("no hello")
        elif isinstance(frame, Submit):
            self._take_tickets(len(frame.batch))
            self._server.handler.submit(self, frame.batch, frame.options)
        elif isinstance(frame, LookUp):
            self._take_tickets(len(frame.batch))
            self._server.handler.look_up(self, frame.batch)
        elif isinstance(frame, AskLog):
            self._take_tickets(1)
            self._server.handler.ask_log(self, frame.ticket, frame.question)
        else:
            self.counts = frame.counts

    def send(self, answers: Sequence[TicketedAnswer]) -> None:
        """Send all of them with one write. The tickets that a front end may have open bound their volume."""
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
        """See Replies. Left out for a front end that does not read."""
        if self.transport is not None and not self.transport.is_closing() and not self._writing_paused:
            self.transport.write(encode_frame(Wait(list(tickets), wait_s), self._server.settings.frame_max_bytes))

    def announce(self, word: bytes) -> None:
        """Send what the core reports. A front end that does not read gets none, and so regards the core as passive."""
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
        word = encode_frame(Word(server.handler.standing()), server.settings.frame_max_bytes)
        self.announce(welcome + word + server.peers_frame())

    def _take_tickets(self, count: int) -> None:
        self._open_tickets += count
        if self._open_tickets > self._server.settings.tickets_max:
            raise LinkBroken(f"{self._open_tickets} tickets open, the limit is {self._server.settings.tickets_max}")
