"""What a connection's use is charged to, and the header with which HAProxy says it."""

from __future__ import annotations

import ipaddress
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger_api.server.sources import HEAD_BYTES, REST_MAX_BYTES, NoProxyHeader, client_source, rest_bytes, source_of

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"


def header(address: str, command: int = 0x21, more: bytes = b"") -> tuple[bytes, bytes]:
    client = ipaddress.ip_address(address)
    rest = client.packed * 2 + struct.pack("!HH", 40_000, 8_081) + more
    family = 0x11 if client.version == 4 else 0x21
    return SIGNATURE + struct.pack("!BBH", command, family, len(rest)), rest


@pytest.mark.parametrize("address", ["192.0.2.7", "2001:db8::7"])
def test_the_header_names_the_source_that_the_address_has(address: str) -> None:
    head, rest = header(address, more=b"\x04\0\1x")
    assert rest_bytes(head) == len(rest)
    assert client_source(head, rest) == source_of((address, 40_000))


def test_a_proxy_that_speaks_for_itself_names_nobody() -> None:
    assert client_source(*header("192.0.2.7", command=0x20)) is None
    assert client_source(SIGNATURE + struct.pack("!BBH", 0x21, 0x31, 216), bytes(216)) is None  # a Unix socket


def test_whoever_has_one_address_of_a_site_has_them_all() -> None:
    assert source_of(("2001:db8::1", 1, 0, 0)) == source_of(("2001:db8::ffff:2", 1, 0, 0))
    assert source_of(("2001:db8:0:1::1", 1, 0, 0)) != source_of(("2001:db8::1", 1, 0, 0))
    assert source_of(("::ffff:192.0.2.7", 1, 0, 0)) == source_of(("192.0.2.7", 1))
    assert source_of(("fe80::1%eth0", 1, 0, 2)) == source_of(("fe80::1", 1, 0, 2))
    assert source_of("") == source_of(None) == b""


@pytest.mark.parametrize(
    "head",
    [
        b"PROXY TCP4 192.0",
        SIGNATURE + struct.pack("!BBH", 0x11, 0x11, 12),
        SIGNATURE + struct.pack("!BBH", 0x21, 0x11, REST_MAX_BYTES + 1),
    ],
)
def test_what_is_no_header_is_refused(head: bytes) -> None:
    assert len(head) == HEAD_BYTES
    with pytest.raises(NoProxyHeader):
        rest_bytes(head)


def test_a_header_without_its_addresses_is_refused() -> None:
    head, rest = header("192.0.2.7")
    for command, short in ((0x21, rest[:-1]), (0x2F, rest)):
        with pytest.raises(NoProxyHeader):
            client_source(head[:12] + bytes([command]) + head[13:], short)


@given(st.binary(min_size=HEAD_BYTES, max_size=HEAD_BYTES), st.binary(max_size=64))
def test_any_bytes_are_a_header_or_none(head: bytes, rest: bytes) -> None:
    for first in (head, SIGNATURE + head[12:]):
        try:
            rest_bytes(first)
            client_source(first, rest)
        except NoProxyHeader:
            pass
