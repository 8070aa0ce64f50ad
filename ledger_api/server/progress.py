"""Interim estimates on plain HTTP: a call that will wait long sends them as lines, and then its answer.

Estimates go only to clients that accept lines. A call without an estimate gets the usual answer. A call with estimates
gets a `200` with one JSON document a line: first the estimates, last the document of the usual answer. The `status` in
that document counts.
"""

from __future__ import annotations

import asyncio

import msgspec
from aiohttp import HttpVersion11, web
from aiohttp.abc import AbstractStreamWriter

from ledger_api.server.replies import Reply, chunk, http_head
from ledger_api.server.streams import NDJSON
from ledger_api.wire.answers import WaitDocument

_OK = 200
_NEVER = float("-inf")
_encoder = msgspec.json.Encoder()


class Progress:
    """The estimates of one call. Never waits: they are few and short."""

    __slots__ = ("_request", "_request_id", "_until_s")

    def __init__(self, request: web.BaseRequest, request_id: str) -> None:
        self._request = request
        self._request_id = request_id
        self._until_s = _NEVER  # by the newest estimate that was sent

    def report(self, wait_s: float) -> None:
        """Send an estimate in seconds from now, unless an earlier estimate covers it."""
        request, until_s = self._request, asyncio.get_running_loop().time() + wait_s
        transport = request.transport
        if until_s <= self._until_s or transport is None or transport.is_closing() or not _accepts_lines(request):
            return
        head = b""
        if self._until_s == _NEVER:
            more = b"" if request.keep_alive else b"Connection: close\r\n"
            head = http_head(_OK, NDJSON, self._request_id, b"Transfer-Encoding: chunked\r\n" + more)
        self._until_s = until_s
        transport.write(head + chunk(_encoder.encode(WaitDocument(estimate_s=wait_s)) + b"\n"))

    def finish(self, reply: Reply) -> Reply:
        """The answer to the call: unchanged, or as the last line after the estimates."""
        return reply if self._until_s == _NEVER else _LastLine(reply, self._request_id)


def _accepts_lines(request: web.BaseRequest) -> bool:
    """HTTP/1.0 knows no body of unknown length on a connection that stays open."""
    return NDJSON.decode() in request.headers.get("Accept", "") and request.version >= HttpVersion11


class _LastLine(Reply):
    """The end of an answer whose head and estimates are written."""

    def __init__(self, reply: Reply, request_id: str) -> None:
        super().__init__(_OK, reply.content, request_id, kind=NDJSON)
        self.reservation = reply.reservation

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Write it. Raises ConnectionError if the client is gone, or does not read it in time."""
        self._stays_open = request.keep_alive
        await self._write(request, chunk(self.content + b"\n") + chunk(b""))
        return None
