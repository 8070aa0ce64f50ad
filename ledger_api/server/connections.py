"""The HTTP server: aiohttp's low-level one, with bounded connections, of which each source has its share.

A connection that takes no request soon is closed. Where a source has its share, or all are taken, the oldest idle
connection gives way of whoever has most (replica/notary/shares.py).

It has no Application and no middleware: with them a request costs 39 µs instead of 25 (measured with an empty handler),
which is a tenth of what the whole path may use.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from http import HTTPStatus
from typing import Any

from aiohttp import StreamReader, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import RawRequestMessage
from aiohttp.http_exceptions import BadHttpMessage
from aiohttp.web_protocol import _ErrInfo  # private: see Connection.data_received

from ledger_api.server.logs import LogLimit
from ledger_api.server.replies import Reply, problem_reply
from ledger_api.server.settings import ApiSettings
from ledger_api.server.sources import source_of
from ledger_api.wire.problems import problem_document
from replica.notary.codes import Code
from replica.notary.shares import Shares

_HALF_CLOSED_GRACE_S = 0.05  # after an answer, so that requests that came with it are begun
_LINGER_S = 1.0  # how long the rest of a refused body is read and dropped, so that the client sees the answer
_DETAIL_MAX = 200

Handle = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class HttpServer(web.Server):
    """Makes the connections' protocols, and knows which are idle. Those for which nothing gives way are closed."""

    def __init__(self, handle: Handle, settings: ApiSettings, connections_max: int | None = None) -> None:
        """`connections_max`: what the process may have, where that is less than the setting."""
        super().__init__(handle, request_factory=_begin)
        self.first_request_max_s = settings.first_request_max_s
        self.shares = Shares(connections_max or settings.connections_max)
        self._idle: dict[Hashable, dict[Connection, None]] = {}  # by source, the oldest first
        self._options: dict[str, Any] = {
            "access_log": None,
            "keepalive_timeout": settings.idle_max_s,
            "max_line_size": settings.header_max_bytes,
            "max_field_size": settings.header_max_bytes,
            "max_headers": settings.headers_max,
            "lingering_time": _LINGER_S,
            "auto_decompress": False,
            "logger": _limited_logger(settings.problem_logs_per_s),
        }
        self.gave_way_count = 0

    def __call__(self, source: Hashable | None = None) -> web.RequestHandler:
        """A connection's protocol. `source`: where its client is; None: where the connection comes from."""
        return Connection(self, source, loop=asyncio.get_running_loop(), **self._options)

    def enter(self, connection: Connection) -> bool:
        """Count a new connection. Returns False when it must not stay: it is not counted then."""
        source = connection.source
        if not self.shares.has_room(source):
            loser = self.shares.gives_way(source, self._idle)
            self.gave_way_count += 1
            if loser is None:
                return False
            oldest = next(iter(self._idle[loser]))
            oldest.leave()
            oldest.force_close()
        self.shares.hold(source)
        self.idle(connection)
        return True

    def idle(self, connection: Connection) -> None:
        """It has no request that waits for an answer."""
        self._idle.setdefault(connection.source, {})[connection] = None

    def busy(self, connection: Connection) -> None:
        """It has one, or has ended."""
        idle = self._idle.get(connection.source, {})
        idle.pop(connection, None)
        if not idle:
            self._idle.pop(connection.source, None)


def _begin(
    message: RawRequestMessage,
    payload: StreamReader,
    protocol: web.RequestHandler,
    writer: AbstractStreamWriter,
    task: asyncio.Task[None],
) -> web.BaseRequest:
    """A request, which its connection counts until it is answered."""
    if isinstance(protocol, Connection):
        protocol.begin()
    return web.BaseRequest(message, payload, protocol, writer, task, asyncio.get_running_loop())


def _limited_logger(per_s: int) -> logging.Logger:
    """The logger for aiohttp's errors, tracebacks included, limited to a number of lines a second."""
    limit = LogLimit(max(1, per_s))
    logger = logging.Logger("aiohttp.server")
    logger.parent = logging.getLogger("aiohttp.server")
    logger.addFilter(lambda record: limit.take() is not None)
    return logger


class Connection(web.RequestHandler):
    """One client connection. Bytes that are no HTTP get a problem document as well.

    `when_lost` is called when the client is gone, because an answer may have nothing to write for a long time. A client
    that closes its sending side (a half-close) gets the answers to its requests, then the connection ends. Streams and
    connections with TLS cannot distinguish a half-close from a client that is gone: both end the connection.
    """

    __slots__ = (
        "_first_request_due",
        "_is_broken",
        "_is_counted",
        "_server",
        "begun",
        "is_half_closed",
        "source",
        "when_half_closed",
        "when_lost",
    )

    def __init__(self, server: HttpServer, source: Hashable | None, **options: Any) -> None:
        super().__init__(server, **options)
        self._server = server
        self.source = source  # what it is charged to: see sources.py
        self._is_counted = False
        self._first_request_due: asyncio.TimerHandle | None = None
        self.when_lost: Callable[[], object] | None = None
        self.when_half_closed: Callable[[], object] | None = None  # to the reader of a body: no more bytes come
        self.begun = 0  # requests that are not answered yet
        self._is_broken = False
        self.is_half_closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        server = self._server
        if self.source is None:
            self.source = source_of(transport.get_extra_info("peername"))
        self._is_counted = server.enter(self)
        if not self._is_counted:
            self.force_close()
            return
        loop = asyncio.get_running_loop()
        self._first_request_due = loop.call_later(server.first_request_max_s, self.force_close)

    def begin(self) -> None:
        """A request came, which waits for its answer from now on."""
        if self._first_request_due is not None:
            self._first_request_due.cancel()
            self._first_request_due = None
        if not self.begun:
            self._server.busy(self)
        self.begun += 1

    def leave(self) -> None:
        """Give its share back, once."""
        if self._first_request_due is not None:
            self._first_request_due.cancel()
        if self._is_counted:
            self._is_counted = False
            self._server.busy(self)
            self._server.shares.free(self.source)

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self.leave()
        if self.when_lost is not None:
            self.when_lost()

    def data_received(self, data: bytes) -> None:
        """Drop what comes after bytes that are no HTTP, and shorten the error that aiohttp queues for them.

        Until the request before is answered, aiohttp would queue one error for each piece, with the piece in it. It has
        no public hook for this. So this method uses the queue `_messages` and its entry `_ErrInfo`, and pyproject.toml
        allows only releases of aiohttp in which both were checked.
        """
        if self._is_broken:
            return
        super().data_received(data)
        if self._messages and isinstance(found := self._messages[-1][0], _ErrInfo):
            self._is_broken = True
            short = found.message[:_DETAIL_MAX]  # the rest repeats what was sent
            self._messages[-1] = (_ErrInfo(found.status, BadHttpMessage(short), short), self._messages[-1][1])

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Answer bytes that are no HTTP. Our own exceptions never come here: `Api.handle` answers those."""
        code = Code.HTTP_MALFORMED if status == HTTPStatus.BAD_REQUEST else Code.INTERNAL
        return problem_reply(problem_document(code, (message or code.title)[:_DETAIL_MAX]), "none")

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Write the answer, and release what it reserved in every case.

        aiohttp keeps the last answer of a connection until the next one.
        """
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            if isinstance(resp, Reply):
                resp.content = b""
                if resp.reservation is not None:
                    resp.reservation.release()
            self.begun -= 1
            if not self.begun and self._is_counted:
                self._server.idle(self)
            if self.is_half_closed:
                asyncio.get_running_loop().call_later(_HALF_CLOSED_GRACE_S, self._close_if_idle)

    def eof_received(self) -> bool:  # type: ignore[override]  # aiohttp's says None, asyncio takes both
        """Whether the transport stays open for what is to be answered."""
        transport = self.transport
        if self.when_lost is not None or transport is None or transport.get_extra_info("sslcontext") is not None:
            return False
        self.is_half_closed = True
        if self.when_half_closed is not None:
            self.when_half_closed()
        asyncio.get_running_loop().call_later(_HALF_CLOSED_GRACE_S, self._close_if_idle)
        return True

    def _close_if_idle(self) -> None:
        if self.begun == 0 and self.transport is not None:
            self.transport.close()
