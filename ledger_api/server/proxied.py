"""The port for HAProxy alone, on which each connection begins with its client's address (the PROXY protocol).

It is a port of its own: on the API's port direct clients would be locked out, or could name any address.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl

import structlog

from ledger_api.server.connections import HttpServer
from ledger_api.server.logs import LogLimit
from ledger_api.server.settings import ProxySettings
from ledger_api.server.sources import HEAD_BYTES, NoProxyHeader, client_source, rest_bytes, source_of
from replica.notary.errors import ConfigError
from replica.notary.loopback import socket_host

HEADER_MAX_S = 5.0
PENDING_MAX = 1_024  # connections whose header is not there yet
_REFUSED_LOGS_PER_S = 1
_ACCEPT_PAUSE_S = 0.1  # after a failure such as no file being left
_log = structlog.get_logger(__name__)


class ProxyListener:
    """Takes connections from the proxies' addresses, and hands them to the server with the client's source."""

    def __init__(self, server: HttpServer, settings: ProxySettings, host: str, tls: ssl.SSLContext | None) -> None:
        """Listens from now on. Raises ConfigError when it cannot."""
        self._server = server
        self._tls = tls
        self._handshake_max_s = settings.handshake_max_s
        self._proxies = [ipaddress.ip_network(source, strict=False) for source in settings.sources]
        self._pending: set[asyncio.Task[None]] = set()
        self._refusals = LogLimit(_REFUSED_LOGS_PER_S)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._socket = socket.create_server(
                ("" if host == "*" else socket_host(host), settings.port),
                family=family,
                backlog=PENDING_MAX,
                reuse_port=True,
            )
        except OSError as error:
            raise ConfigError(f"front ends cannot listen for HAProxy on {host}:{settings.port}: {error}") from None
        self._socket.setblocking(False)
        self.port = int(self._socket.getsockname()[1])
        self._accepting = asyncio.create_task(self._accept_for_ever(), name="proxied connections")

    def close(self) -> None:
        """Take no more. What was handed over stays."""
        for task in (self._accepting, *self._pending):
            task.cancel()
        self._socket.close()

    async def _accept_for_ever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, address = await loop.sock_accept(self._socket)
            except OSError as error:
                self._refusals.write(_log.warning, "proxy_not_accepted", detail=str(error))
                await asyncio.sleep(_ACCEPT_PAUSE_S)
                continue
            if not self._is_proxy(address[0]) or len(self._pending) >= PENDING_MAX:
                client.close()
                self._refusals.write(_log.warning, "proxy_refused", source=address[0])
                continue
            task = asyncio.create_task(self._begin(client, address))
            self._pending.add(task)
            task.add_done_callback(self._pending.discard)

    def _is_proxy(self, host: str) -> bool:
        address = ipaddress.ip_address(host.partition("%")[0])
        plain = getattr(address, "ipv4_mapped", None) or address
        return any(plain in network for network in self._proxies)

    async def _begin(self, client: socket.socket, address: object) -> None:
        """Read the header, no byte more, and hand the connection over."""
        loop = asyncio.get_running_loop()
        try:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout(HEADER_MAX_S):
                head = await _exactly(client, HEAD_BYTES)
                source = client_source(head, await _exactly(client, rest_bytes(head)))
            source = source_of(address) if source is None else source
            limit_s = None if self._tls is None else self._handshake_max_s
            await loop.connect_accepted_socket(
                lambda: self._server(source), client, ssl=self._tls, ssl_handshake_timeout=limit_s
            )
        except NoProxyHeader as error:
            client.close()
            self._refusals.write(_log.warning, "proxy_refused", source=str(address), detail=str(error))
        except OSError:  # gone, or no handshake in time: a TimeoutError is one
            client.close()
        except BaseException:
            client.close()
            raise


async def _exactly(client: socket.socket, count: int) -> bytes:
    """So many bytes. Raises ConnectionError when the connection ends before."""
    loop, received = asyncio.get_running_loop(), b""
    while len(received) < count:
        piece = await loop.sock_recv(client, count - len(received))
        if not piece:
            raise ConnectionResetError("the connection ended within the header")
        received += piece
    return received
