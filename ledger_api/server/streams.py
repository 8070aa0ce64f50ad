"""Answers without an end: lines as they come, as newline-delimited JSON or server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

import msgspec
from aiohttp import HttpVersion10, web
from aiohttp.abc import AbstractStreamWriter

from ledger_api.server.capacity import Use
from ledger_api.server.connections import Connection
from ledger_api.server.feed import FeedRefused
from ledger_api.server.feed_lines import Line
from ledger_api.server.replies import Reply, chunk, http_head
from ledger_api.wire.feed import EndDocument
from ledger_api.wire.problems import ProblemDocument, problem_document
from replica.notary.codes import Code

NDJSON, EVENTS = b"application/x-ndjson", b"text/event-stream"
BUFFER_MAX_BYTES = 256 * 1024  # written to one reader that has not taken it yet; more is not made before
_encoder = msgspec.json.Encoder()

Lines = AsyncGenerator[list[Line]]
Explain = Callable[[FeedRefused], ProblemDocument]


class StreamReply(Reply):
    """Writes batches of lines as they come. When the server ends the stream, the last line has the reason."""

    def __init__(
        self,
        lines: Lines,
        after: int,
        request_id: str,
        *,
        events: bool,
        read_max_s: float,
        explain: Explain,
        use: Use,
    ) -> None:
        """`use`: what the caller has of the streams, until this one is written, or cannot be."""
        super().__init__(200, b"", request_id, kind=EVENTS if events else NDJSON)
        self._lines = lines
        self._after = after
        self._events = events
        self._read_max_s = read_max_s
        self._explain = explain
        self.reservation = use

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Write until the stream ends. Raises ConnectionError if the reader is gone."""
        task, connection = asyncio.current_task(), request.protocol
        assert task is not None
        assert isinstance(connection, Connection)
        if connection.is_half_closed:
            raise ConnectionResetError("the client's side of the connection ended")
        connection.when_lost = task.cancel
        try:
            await self._stream(request)
        finally:
            connection.when_lost = None
        return None

    async def _stream(self, request: web.BaseRequest) -> None:
        transport = request.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the client closed the connection")
        self._stays_open = False  # where it ends, the connection does: HTTP/1.0 knows no other end
        chunked = request.version != HttpVersion10
        transport.set_write_buffer_limits(high=BUFFER_MAX_BYTES)
        more = b"Transfer-Encoding: chunked\r\n" if chunked else b""
        transport.write(http_head(200, self._kind, self._request_id, more + b"Connection: close\r\n"))
        offset = self._after
        try:
            async with aclosing(self._lines) as windows:
                async for lines in windows:
                    offset = lines[-1].offset
                    rendered = self._render(lines)
                    await self._send(request, transport, chunk(rendered) if chunked else rendered)
        except FeedRefused as refused:
            problem = self._explain(refused)
        except TimeoutError:
            detail = f"nothing was taken for {self._read_max_s:g} s"
            problem = problem_document(Code.READER_TOO_SLOW, detail, self._request_id, retry_after_s=0.0)
        last = Line(offset, "end", _encoder.encode(EndDocument(offset=offset, problem=problem)))
        rendered = self._render([last])
        transport.write(chunk(rendered) + chunk(b"") if chunked else rendered)
        await self._close(request, transport)

    async def _send(self, request: web.BaseRequest, transport: asyncio.Transport, data: bytes) -> None:
        """Write, and wait while the reader lags. Raises TimeoutError, or ConnectionError when it is gone."""
        if transport.is_closing():
            raise ConnectionResetError("the client closed the connection")
        transport.write(data)
        if request.protocol.writing_paused:
            async with asyncio.timeout(self._read_max_s):
                await request.writer.drain()

    async def _close(self, request: web.BaseRequest, transport: asyncio.Transport) -> None:
        """Give a slow reader a moment for its last lines; then the connection ends."""
        transport.set_write_buffer_limits(high=0)
        try:
            async with asyncio.timeout(self._read_max_s):
                await request.writer.drain()
        except TimeoutError:
            transport.abort()

    def _render(self, lines: Sequence[Line]) -> bytes:
        if self._events:
            return b"".join([b"id: %d\nevent: %b\ndata: %b\n\n" % (x.offset, x.kind.encode(), x.json) for x in lines])
        return b"".join([line.json + b"\n" for line in lines])
