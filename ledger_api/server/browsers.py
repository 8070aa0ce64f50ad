"""What a browser that follows a foreign page could do here, and may not: replica/notary/web_hosts.py has the rule."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from ledger_api.server.settings import ApiSettings
from replica.notary.codes import Code
from replica.notary.errors import BadRequest
from replica.notary.loopback import is_loopback
from replica.notary.web_hosts import WebHosts


class Browsers:
    """Checks Host and Origin, where nothing else keeps a foreign page out.

    With TLS a page cannot let its name resolve to us: the certificate is of another name. With tokens it has none.
    """

    def __init__(self, settings: ApiSettings, hosts: Sequence[str]) -> None:
        here = is_loopback(settings.host)
        self._hosts = WebHosts((settings.host, *hosts), addresses=not here)
        self._checks_origin = here or settings.tokens is None
        self._checks_host = self._checks_origin and settings.tls is None
        self._last: str | None = None  # taken before: most requests name the same host

    def check(self, request: web.BaseRequest) -> None:
        """Raises BadRequest: WRONG_HOST."""
        if not self._checks_origin:
            return
        host = request.headers.get("Host")
        if self._checks_host and host != self._last:
            if not self._hosts.takes_host(host):
                raise BadRequest(f"the request is for {str(host)[:100]!r}", Code.WRONG_HOST)
            self._last = host
        if "Upgrade" in request.headers:
            origin = request.headers.get("Origin")
            if not self._hosts.takes_origin(origin, host):
                raise BadRequest(f"a page of {str(origin)[:100]!r} opens a WebSocket", Code.WRONG_HOST)
