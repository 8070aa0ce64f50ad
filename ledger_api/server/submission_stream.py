"""Opening streams of submissions: a WebSocket for each, which one session serves until it ends."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

from ledger_api.server.authorisation import Caller, holder_of
from ledger_api.server.connections import Connection
from ledger_api.server.handshake import check_handshake, no_handshake
from ledger_api.server.replies import Reply
from ledger_api.server.submission_session import Session, Shared
from ledger_api.wire.stream_frames import PROTOCOL

_PING_S = 20.0
_CLOSE_MAX_S = 1.0
_SWITCHED = 101


class SubmissionStreams:
    """Opens streams of submissions."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    async def serve(
        self, request: web.BaseRequest, request_id: str, caller: Caller, charge: Callable[[int], None]
    ) -> Reply:
        """Switch protocols, serve the stream until it ends, and return an answer for the counts.

        The stream is served before this method returns, because aiohttp would then go on with HTTP. Raises BadRequest
        when the handshake is none.
        """
        check_handshake(request)
        socket = web.WebSocketResponse(
            protocols=(PROTOCOL,),
            heartbeat=_PING_S,
            compress=False,
            max_msg_size=self._shared.settings.body_max_bytes,
            timeout=_CLOSE_MAX_S,
        )
        try:
            await socket.prepare(request)
        except web.HTTPBadRequest:  # aiohttp checks as well, perhaps more than we do
            raise no_handshake("it cannot be understood") from None
        connection = request.protocol
        assert isinstance(connection, Connection)
        if connection.is_half_closed:
            raise ConnectionResetError("the client's side of the connection ended")
        connection.when_lost = _nothing  # a client that ended its side reads no answers
        holder = holder_of(caller, connection)
        try:
            await Session(self._shared, socket, request_id, caller, charge, holder=holder).run()
        finally:
            connection.when_lost = None
        return _Served(_SWITCHED, b"", request_id)


def _nothing() -> None:
    """Do nothing: the stream itself notices that its client is gone."""


class _Served(Reply):
    """The answer of a stream that is over: nothing is left to write."""

    @property
    def keep_alive(self) -> bool | None:
        """A stream's connection serves nothing else."""
        return False

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        return None
