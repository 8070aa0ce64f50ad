"""Whether traffic to an address stays on this machine."""

from __future__ import annotations

import ipaddress


def socket_host(host: str) -> str:
    """The host as sockets take it: an IPv6 address without the brackets of a URL."""
    return host.removeprefix("[").removesuffix("]")


def is_loopback(host: str) -> bool:
    """Whether a host, as written in a URL or a setting, is this machine and no other.

    A name that only looks like an address (`127.example.com`) is not.
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(socket_host(host)).is_loopback
    except ValueError:
        return False
