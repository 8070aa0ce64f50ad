"""`python -m tests.bench.null_server`: answers every HTTP request at once with the same body; prints its port.

What a load generator measures against it is the generator's own share of a latency.
"""

from __future__ import annotations

import asyncio
from typing import cast

import uvloop

from tests.bench.http_message import is_whole

_BODY = b'{"code":"NOTARISED","detail":"' + b"x" * 600 + b'"}'
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(_BODY), _BODY)


class _Answering(asyncio.Protocol):
    def __init__(self) -> None:
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance

    def data_received(self, data: bytes) -> None:
        received = self._received + data
        if is_whole(received):
            self._received = b""
            self._transport.write(_ANSWER)
        else:
            self._received = received


async def serve() -> None:
    """Until killed."""
    server = await asyncio.get_running_loop().create_server(_Answering, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve())
