"""Shows a replica's status page to one browser on this machine: a loopback port for whoever has its one-time token.

Other accounts reach the port as well, so each request needs a cookie, and the token that gives it counts once.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from pathlib import Path

import aiohttp
from aiohttp import web

from ha.health import never_cached, runner_of
from replica.notary.web_hosts import WebHosts

SHOWN = ("/", "/page.js", "/page.css", "/page/data", "/admin/v1/status")
ANSWER_MAX_S = 10.0
_COOKIE = "notary-status"
_PASSED_ON = (
    "Content-Type",
    "Content-Security-Policy",
    "X-Content-Type-Options",
    "Referrer-Policy",
    "Cross-Origin-Resource-Policy",
)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class StatusDoor:
    """Passes what a browser reads on to a replica's admin listener, from `start` to `stop`."""

    def __init__(self, admin_socket: Path, port: int) -> None:
        """`port` 0: any free one."""
        self._token: str | None = secrets.token_urlsafe(32)
        self._cookie = secrets.token_urlsafe(32)
        self._hosts = WebHosts()
        self._admin_socket = admin_socket
        self._port = port
        app = web.Application(client_max_size=1024, middlewares=[self._guarded])
        for path in SHOWN:
            app.router.add_get(path, self._pass_on)
        app.on_response_prepare.append(never_cached)
        self._runner = runner_of(app)
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> str:
        """Listen; returns the URL to open, once. Raises OSError when the port is taken."""
        connector = aiohttp.UnixConnector(str(self._admin_socket))
        self._session = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(ANSWER_MAX_S))
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port).start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}/?token={self._token}"

    async def stop(self) -> None:
        """Stop listening. May be repeated."""
        await self._runner.cleanup()
        if self._session is not None:
            await self._session.close()

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if not self._hosts.takes_host(request.headers.get("Host")):
            return web.Response(text="WRONG_HOST\n", status=HTTPStatus.FORBIDDEN)
        if _same(request.cookies.get(_COOKIE), self._cookie):
            return await handler(request)
        if request.path == "/" and _same(request.query.get("token"), self._token):
            self._token = None
            answer = web.Response(status=HTTPStatus.SEE_OTHER, headers={"Location": "/"})
            answer.set_cookie(_COOKIE, self._cookie, httponly=True, samesite="Strict")
            return answer
        why = "TOKEN_MISSING: open the URL that notary status-page printed; it counts once, so start it again\n"
        return web.Response(text=why, status=HTTPStatus.FORBIDDEN)

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        if self._session is None:
            return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE)
        try:
            async with self._session.get(f"http://localhost{request.path_qs}") as answer:
                headers = {name: answer.headers[name] for name in _PASSED_ON if name in answer.headers}
                return web.Response(body=await answer.read(), status=answer.status, headers=headers)
        except (aiohttp.ClientError, OSError):
            why = "REPLICA_UNREACHABLE: the replica's admin listener does not answer\n"
            return web.Response(text=why, status=HTTPStatus.BAD_GATEWAY)


def _same(given: str | None, wanted: str | None) -> bool:
    """Whether the two are the same, in constant time; nothing is the same as None."""
    return (
        given is not None
        and wanted is not None
        and hmac.compare_digest(given.encode(errors="replace"), wanted.encode())
    )
