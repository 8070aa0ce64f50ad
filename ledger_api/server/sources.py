"""Where a connection comes from: the address that its use is charged to where there is no user.

Behind HAProxy that address is in the header of the PROXY protocol, version 2, with which each of its connections begins
(https://www.haproxy.org/download/2.6/doc/proxy-protocol.txt).
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Hashable

_SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
_HEAD = struct.Struct("!12sBBH")
HEAD_BYTES = _HEAD.size
REST_MAX_BYTES = 536  # of a header, whatever it carries beside the addresses
_VERSION_2 = 0x20
_PROXY, _LOCAL = 1, 0  # commands: for a client, and on the proxy's own behalf
_FAMILIES = {0x11: 4, 0x21: 16}  # TCP over IPv4 and IPv6: bytes of an address
_SITE_BYTES = 8  # whoever has one IPv6 address has the 2**64 beside it


class NoProxyHeader(ValueError):
    """The connection does not begin with a header of version 2."""


def source_of(address: object) -> Hashable:
    """The source that an address counts as: itself, or of IPv6 its network of 64 bits. `address`: as sockets have it.

    Bytes, so that it is equal to no user's name.
    """
    host = address[0] if isinstance(address, tuple) and address else ""
    try:
        return _source(ipaddress.ip_address(str(host).partition("%")[0]))
    except ValueError:
        return b""  # a Unix socket: all of it is one source


def rest_bytes(head: bytes) -> int:
    """How many bytes of the header follow its first HEAD_BYTES. Raises NoProxyHeader."""
    signature, version, _, size = _HEAD.unpack(head)
    if signature != _SIGNATURE or version & 0xF0 != _VERSION_2 or size > REST_MAX_BYTES:
        raise NoProxyHeader("this is no header of the PROXY protocol, version 2")
    return int(size)


def client_source(head: bytes, rest: bytes) -> Hashable | None:
    """The client's source; None where the proxy speaks for itself, or does not say. Raises NoProxyHeader."""
    _, version, family, _ = _HEAD.unpack(head)
    command, size = version & 0x0F, _FAMILIES.get(family)
    if command == _LOCAL or (command == _PROXY and size is None):
        return None
    if command != _PROXY or size is None or len(rest) < 2 * size + 4:
        raise NoProxyHeader("the header has no addresses")
    return _source(ipaddress.ip_address(rest[:size]))


def _source(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bytes:
    if isinstance(address, ipaddress.IPv6Address):
        mapped = address.ipv4_mapped
        return address.packed[:_SITE_BYTES] if mapped is None else mapped.packed
    return address.packed
