"""Reading the body of a call: bounded in bytes and in time."""

from __future__ import annotations

import asyncio

from aiohttp import web

from ledger_api.server.connections import Connection
from ledger_api.server.settings import ApiSettings
from replica.notary.codes import Code
from replica.notary.errors import BadRequest


def body_size(request: web.BaseRequest, settings: ApiSettings) -> int:
    """The bytes to reserve for a body: its length, or the limit if no length is given. Raises BadRequest."""
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
            body = await _read_in_pieces(request, settings.body_max_bytes)
        if was_cut:
            raise BadRequest("the client's side of the connection ended within the body", Code.HTTP_MALFORMED)
        return body
    except TimeoutError:
        raise BadRequest(f"no whole body within {settings.body_read_max_s:g} s", Code.BODY_TOO_SLOW) from None
    except web.RequestPayloadError as error:
        raise BadRequest(f"the body's transfer coding is broken: {error}", Code.HTTP_MALFORMED) from None
    finally:
        connection.when_half_closed = None


async def _read_in_pieces(request: web.BaseRequest, limit: int) -> bytes:
    if request.headers.get("Expect", "").lower() == "100-continue" and request.transport is not None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    pieces: list[bytes] = []
    size = 0
    while piece := await request.content.readany():
        size += len(piece)
        if size > limit:
            raise BadRequest(f"the body has more than {limit} bytes, which is the limit", Code.BODY_TOO_LARGE)
        pieces.append(piece)
    return b"".join(pieces)
