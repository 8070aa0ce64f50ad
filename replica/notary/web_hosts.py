"""Whether a request may come from a browser that follows a foreign page. One rule for all that speaks HTTP. Pure.

A page that lets its own name resolve to our address is asked for, by the browser, under that name: the Host header has
it. A page that opens a WebSocket elsewhere is named by the Origin header. Only browsers are met by this rule: other
programs choose what they send.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from replica.notary.loopback import is_loopback


class WebHosts:
    """The names by which a listener may be asked for: loopback ones, and those that it is given."""

    def __init__(self, names: Iterable[str] = (), *, addresses: bool = False) -> None:
        """`addresses`: by any address as well, which no page can let resolve to another one."""
        self._names = frozenset(_plain(name) for name in names if name)
        self._addresses = addresses

    def takes_host(self, host: str | None) -> bool:
        """Whether a request with this Host header is taken; None: without one, which no browser sends."""
        if host is None:
            return True
        name = _plain(_without_port(host))
        return self._knows(name) or (self._addresses and _is_address(name))

    def takes_origin(self, origin: str | None, host: str | None) -> bool:
        """Whether a WebSocket may be opened by a page of this origin, asked for under this Host header."""
        if origin is None:
            return True
        name = _plain(_without_port(origin.partition("://")[2]))
        return bool(name) and (self._knows(name) or (host is not None and name == _plain(_without_port(host))))

    def _knows(self, name: str) -> bool:
        return name in self._names or is_loopback(name)


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]


def _plain(name: str) -> str:
    return name.strip().lower().removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True
