"""HTTP answers: whole ones, written with one call, and the pieces of answers of unknown length."""

from __future__ import annotations

import asyncio
import time
from email.utils import formatdate
from http import HTTPStatus
from typing import Protocol, Self

import msgspec
from aiohttp import HttpVersion10, web
from aiohttp.abc import AbstractStreamWriter

from ledger_api.server.byte_budget import Reservation
from ledger_api.wire.problems import ProblemDocument

JSON, PROBLEM = b"application/json", b"application/problem+json"
ANSWER_READ_MAX_S = 10.0  # a client that does not read its answer in this time loses the connection
_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
_ALWAYS = b"\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nX-Request-Id: "
_COPIED_MAX_BYTES = 64 * 1024  # a larger body is not joined with its head
_encoder = msgspec.json.Encoder()


class Held(Protocol):
    """What an answer holds until it is written."""

    def release(self) -> None:
        """Give it back; may be repeated."""


class Reply(web.StreamResponse):
    """A whole answer that is known at once, written with one call.

    It replaces `web.Response`, with the three members of a response that the server uses.
    """

    def __init__(self, status: int, body: bytes, request_id: str, *, kind: bytes = JSON, more: bytes = b"") -> None:
        # The base class would prepare a header map, cookies and a body writer, none of which is used.
        self.code = status
        self.content = body
        self._request_id = request_id
        self._kind = kind
        self._more = more  # further header lines, each with its line end
        self._stays_open: bool | None = None
        self.reservation: Held | None = None  # released once the answer is written, or cannot be

    def holding(self, reservation: Reservation) -> Self:
        """This answer, which keeps no more of the reservation than its own bytes, until it is written."""
        reservation.shrink(len(self.content))
        self.reservation = reservation
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


def problem_reply(problem: ProblemDocument, request_id: str, more: bytes = b"") -> Reply:
    """The answer that is a problem; `more`: further header lines, each with its end."""
    more += retry_after_header(problem.retry_after_s)
    return Reply(problem.status, _encoder.encode(problem), request_id, kind=PROBLEM, more=more)


def retry_after_header(retry_after_s: float | None) -> bytes:
    """The header line in whole seconds, at least one: the body has the exact figure."""
    return b"" if retry_after_s is None else b"Retry-After: %d\r\n" % max(1, -int(-retry_after_s // 1))


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


_date: tuple[int, bytes] = (0, b"")


def _http_date() -> bytes:
    global _date  # noqa: PLW0603 (one value for all connections, made once a second)
    second = int(time.time())
    if _date[0] != second:
        _date = (second, formatdate(second, usegmt=True).encode())
    return _date[1]
