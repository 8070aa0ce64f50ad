"""The HTTP side: aiohttp's low-level server with whole answers, bounded bodies and bounded connections.

There is no Application, router or middleware on the way: with them a request costs 39 µs instead of 25 (measured with
an empty handler), which is a tenth of what the whole path may use.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, Self

import msgspec
from aiohttp import HttpVersion10, StreamReader, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import RawRequestMessage
from aiohttp.http_exceptions import BadHttpMessage
from aiohttp.web_protocol import _ErrInfo

from ledger_api.server.logs import LogLimit
from ledger_api.server.room import Held
from ledger_api.server.settings import ApiSettings
from ledger_api.wire.problems import problem_document
from replica.notary.errors import BadRequest, Code

JSON, PROBLEM = b"application/json", b"application/problem+json"
_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
_ALWAYS = b"\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nX-Request-Id: "
ANSWER_READ_MAX_S = 10.0  # then a client that does not read its answer loses the connection
_PART_S = 0.05  # after an answer, so that requests that came with it are begun
_LINGER_S = 1.0  # how long the rest of a refused body is read and dropped, so that the client sees the answer
_DETAIL_MAX = 200
_COPIED_MAX_BYTES = 64 * 1024  # a larger answer is not made one with its head
_encoder = msgspec.json.Encoder()

Handle = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Reply(web.StreamResponse):
    """A whole answer that is known at once, written with one call.

    Takes the place of `web.Response` by answering the three questions that the server asks of a response.
    """

    def __init__(self, status: int, body: bytes, request_id: str, *, kind: bytes = JSON, more: bytes = b"") -> None:
        # The base class would prepare a header map, cookies and a body writer, none of which is used.
        self.code = status
        self.content = body
        self._request_id = request_id
        self._kind = kind
        self._more = more  # further header lines, each with its line end
        self._stays_open: bool | None = None
        self.held: Held | None = None  # given back once the answer is written, or cannot be

    def holding(self, held: Held) -> Self:
        """This answer, which has room for no more than its own bytes until it is written."""
        held.shrink(len(self.content))
        self.held = held
        return self

    @property
    def keep_alive(self) -> bool | None:
        """Whether the connection stays open; None before the answer is written."""
        return self._stays_open

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Write all of the answer. Raises ConnectionError if the client is gone, or does not read it in time."""
        self._stays_open = stays_open = request.keep_alive
        if not stays_open:
            connection = b"Connection: close\r\n"
        else:
            connection = b"Connection: keep-alive\r\n" if request.version == HttpVersion10 else b""
        content = self.content
        head = b"%bContent-Type: %b\r\nContent-Length: %d\r\nDate: %b%b%b\r\n%b%b\r\n" % (
            _STATUS_LINES[self.code],
            self._kind,
            len(content),
            _http_date(),
            _ALWAYS,
            self._request_id.encode(),
            self._more,
            connection,
        )
        if request.method == "HEAD":
            await self._write(request, head)
        elif len(content) > _COPIED_MAX_BYTES:
            await self._write(request, head, content)
        else:
            await self._write(request, head + content)
        return None

    @staticmethod
    async def _write(request: web.BaseRequest, *parts: bytes) -> None:
        transport = request.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client closed the connection")
        transport.writelines(parts) if len(parts) > 1 else transport.write(parts[0])
        if request.protocol.writing_paused:
            await _wait_for_reader(request, transport)

    async def write_eof(self, data: bytes = b"") -> None:
        """Nothing is left to write."""


def http_head(status: int, kind: bytes, request_id: str, more: bytes) -> bytes:
    """Status line and headers of an answer whose length is not known; `more`: further lines, each with its end."""
    return b"%bContent-Type: %b\r\nDate: %b%b%b\r\n%b\r\n" % (
        _STATUS_LINES[status],
        kind,
        _http_date(),
        _ALWAYS,
        request_id.encode(),
        more,
    )


def chunk(data: bytes) -> bytes:
    """One chunk of a body whose length is not known; an empty one ends it."""
    return b"%x\r\n%b\r\n" % (len(data), data)


async def _wait_for_reader(request: web.BaseRequest, transport: asyncio.Transport) -> None:
    try:
        async with asyncio.timeout(ANSWER_READ_MAX_S):
            await request.writer.drain()
    except TimeoutError:
        transport.abort()
        raise ConnectionResetError("the client does not read its answer") from None


def retry_after_header(retry_after_s: float | None) -> bytes:
    """The header line in whole seconds, at least one: the body has the exact figure."""
    return b"" if retry_after_s is None else b"Retry-After: %d\r\n" % max(1, -int(-retry_after_s // 1))


def body_size(request: web.BaseRequest, settings: ApiSettings) -> int:
    """The bytes to set aside for a body: its length, or the limit when it comes without. Raises BadRequest."""
    length, limit = request.content_length, settings.body_max_bytes
    if length is None:
        return limit
    if length > limit:
        raise BadRequest(f"the body has {length} bytes, the limit is {limit}", Code.BODY_TOO_LARGE)
    return length


async def read_body(request: web.BaseRequest, settings: ApiSettings) -> bytes:
    """The whole body. Raises BadRequest when it turns out too large, comes too slowly, or is broken."""
    if request.content.is_eof():
        return request.content.read_nowait()  # the usual case: it came along with the head
    connection = request.protocol
    assert isinstance(connection, Connection)
    was_cut = False

    def cut() -> None:
        nonlocal was_cut
        was_cut = True
        request.content.feed_eof()

    connection.when_half_closed = cut
    if connection.is_half_closed:
        cut()
    try:
        async with asyncio.timeout(settings.body_read_max_s):
            body = await _read_slowly(request, settings.body_max_bytes)
        if was_cut:
            raise BadRequest("the client's side of the connection ended within the body", Code.HTTP_MALFORMED)
        return body
    except TimeoutError:
        raise BadRequest(f"no whole body within {settings.body_read_max_s:g} s", Code.BODY_TOO_SLOW) from None
    except web.RequestPayloadError as error:
        raise BadRequest(f"the body's transfer coding is broken: {error}", Code.HTTP_MALFORMED) from None
    finally:
        connection.when_half_closed = None


async def _read_slowly(request: web.BaseRequest, limit: int) -> bytes:
    if request.headers.get("Expect", "").lower() == "100-continue" and request.transport is not None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    chunks: list[bytes] = []
    size = 0
    while chunk := await request.content.readany():
        size += len(chunk)
        if size > limit:
            raise BadRequest(f"the body has more than {limit} bytes, which is the limit", Code.BODY_TOO_LARGE)
        chunks.append(chunk)
    return b"".join(chunks)


class HttpServer(web.Server):
    """Makes the connections' protocols; counts connections, and closes at once those above the limit."""

    def __init__(self, handle: Handle, settings: ApiSettings) -> None:
        super().__init__(handle, request_factory=_begin)
        self.connections_max = settings.connections_max
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
        self.at_limit_count = 0

    def __call__(self) -> web.RequestHandler:
        return Connection(self, loop=asyncio.get_running_loop(), **self._options)


def _begin(
    message: RawRequestMessage,
    payload: StreamReader,
    protocol: web.RequestHandler,
    writer: AbstractStreamWriter,
    task: asyncio.Task[None],
) -> web.BaseRequest:
    """A request, which its connection counts until it is answered."""
    if isinstance(protocol, Connection):
        protocol.begun += 1
    return web.BaseRequest(message, payload, protocol, writer, task, asyncio.get_running_loop())


def _limited_logger(per_s: int) -> logging.Logger:
    """For what aiohttp has to say of errors, tracebacks included: so many lines a second."""
    limit = LogLimit(max(1, per_s))
    logger = logging.Logger("aiohttp.server")
    logger.parent = logging.getLogger("aiohttp.server")
    logger.addFilter(lambda record: limit.take() is not None)
    return logger


class Connection(web.RequestHandler):
    """One client connection. What is no HTTP gets a problem document as well.

    `when_lost` is called when the client is gone: for an answer that may have nothing to write for long. A client that
    ends its side (a half-close) is answered what it has asked, then the connection ends. Two cannot be told from one
    that is gone, and end with its side: a stream, and a connection with TLS, which knows no half.
    """

    __slots__ = ("_is_broken", "begun", "is_half_closed", "when_half_closed", "when_lost")

    def __init__(self, manager: web.Server, **options: Any) -> None:
        super().__init__(manager, **options)
        self.when_lost: Callable[[], object] | None = None
        self.when_half_closed: Callable[[], object] | None = (
            None  # who reads a body is told that there is no more of it
        )
        self.begun = 0  # requests that are not answered yet
        self._is_broken = False
        self.is_half_closed = False

    def eof_received(self) -> bool:  # type: ignore[override]  # aiohttp's says None, asyncio takes both
        """Whether the transport stays open for what is to be answered."""
        transport = self.transport
        if self.when_lost is not None or transport is None or transport.get_extra_info("sslcontext") is not None:
            return False
        self.is_half_closed = True
        if self.when_half_closed is not None:
            self.when_half_closed()
        asyncio.get_running_loop().call_later(_PART_S, self._part_if_idle)
        return True

    def _part_if_idle(self) -> None:
        if self.begun == 0 and self.transport is not None:
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        """What comes behind something that is no HTTP is not looked at: each piece would be kept with an error."""
        if self._is_broken:
            return
        super().data_received(data)
        if self._messages and isinstance(found := self._messages[-1][0], _ErrInfo):
            self._is_broken = True
            short = found.message[:_DETAIL_MAX]  # the rest repeats what was sent
            self._messages[-1] = (_ErrInfo(found.status, BadHttpMessage(short), short), self._messages[-1][1])

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        server = self._manager
        if isinstance(server, HttpServer) and len(server.connections) > server.connections_max:
            server.at_limit_count += 1
            self.force_close()

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Write the answer; what it held is free whatever becomes of it.

        aiohttp keeps the last answer of a connection until the next one.
        """
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            if isinstance(resp, Reply):
                resp.content = b""
                if resp.held is not None:
                    resp.held.give_back()
            self.begun -= 1
            if self.is_half_closed:
                asyncio.get_running_loop().call_later(_PART_S, self._part_if_idle)

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        if self.when_lost is not None:
            self.when_lost()

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """What cannot be read as HTTP. An exception of our own never comes here: `Api.handle` answers those."""
        code = Code.HTTP_MALFORMED if status == HTTPStatus.BAD_REQUEST else Code.INTERNAL
        document = problem_document(code, (message or code.title)[:_DETAIL_MAX])
        return Reply(code.status, _encoder.encode(document), "none", kind=PROBLEM)


_date: tuple[int, bytes] = (0, b"")


def _http_date() -> bytes:
    global _date  # noqa: PLW0603 (one value for all connections, made once a second)
    second = int(time.time())
    if _date[0] != second:
        _date = (second, formatdate(second, usegmt=True).encode())
    return _date[1]
