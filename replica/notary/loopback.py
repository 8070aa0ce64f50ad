"""Whether traffic to an address stays on this machine."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether a host, as written in a URL or a setting, is this machine and no other.

    A name that only looks like an address (`127.example.com`) is not.
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False
