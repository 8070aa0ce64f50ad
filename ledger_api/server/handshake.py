"""Checks the handshake that opens a WebSocket, as RFC 6455 defines it."""

from __future__ import annotations

import re

from aiohttp import HttpVersion11, web

from replica.notary.codes import Code
from replica.notary.errors import BadRequest

_VERSIONS = ("13", "8", "7")
_KEY = re.compile("[A-Za-z0-9+/]{22}==")


def check_handshake(request: web.BaseRequest) -> None:
    """Refuse what does not open a WebSocket. Raises BadRequest: HTTP_MALFORMED."""
    headers = request.headers
    if request.version < HttpVersion11 or "upgrade" not in headers.get("Connection", "").lower():
        raise no_handshake("it is not HTTP/1.1 with Connection: Upgrade")
    if headers.get("Sec-WebSocket-Version") not in _VERSIONS:
        raise no_handshake("Sec-WebSocket-Version is not 13")
    if not _KEY.fullmatch(headers.get("Sec-WebSocket-Key", "")):
        raise no_handshake("Sec-WebSocket-Key is not 16 bytes in base64")


def no_handshake(why: str) -> BadRequest:
    """The error of a request that does not open a WebSocket."""
    return BadRequest(f"this does not open a WebSocket: {why}", Code.HTTP_MALFORMED)
