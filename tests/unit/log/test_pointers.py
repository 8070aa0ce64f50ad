"""Pointers to payloads: what is one, and what it stands for."""

from __future__ import annotations

import struct
from hashlib import sha256

import pytest

from replica.log.kafka.pointers import (
    MAGIC,
    PARTITIONS_MAX,
    POINTER_BYTES,
    Pointer,
    may_be_split,
    merged,
    pointer_in,
    pointer_to,
)
from replica.notary.codes import Code
from replica.notary.errors import LogRefused
from replica.notary.records import RECORD_MAX_BYTES

REQUEST = b"\x9d\x01\x02" + bytes(5_000)


def packed(partition: int = 0, offset: int = 0, size: int = 10, magic: bytes = MAGIC) -> bytes:
    return struct.pack(">16sIQI32s", magic, partition, offset, size, bytes(32))


def test_a_pointer_has_the_bytes_of_its_page() -> None:
    """Goal: pointers are those of docs/formats.md. Method: make one, compare with its bytes written out, read it."""
    value = pointer_to(REQUEST, 3, 2**40)
    size = len(REQUEST)
    by_hand = b"notary/payload/1" + bytes([0, 0, 0, 3]) + (2**40).to_bytes(8) + size.to_bytes(4)
    assert value == by_hand + sha256(REQUEST).digest()
    assert len(value) == POINTER_BYTES == 64
    assert pointer_in(value) == Pointer(3, 2**40, size, sha256(REQUEST).digest())


@pytest.mark.parametrize(
    "value",
    [
        packed(partition=PARTITIONS_MAX),
        packed(offset=2**63),
        packed(size=RECORD_MAX_BYTES + 1),
        packed(size=2**32 - 1),
        packed(magic=b"notary/payload/2"),
        packed() + b"\0",
        packed()[:-1],
        MAGIC,
        b"",
    ],
)
def test_what_breaks_a_bound_is_no_pointer(value: bytes) -> None:
    """Goal: a hostile pointer reserves nothing and opens nothing, for every reader. Method: pass each bound by one."""
    assert pointer_in(value) is None


def test_the_bounds_themselves_are_allowed() -> None:
    """Goal: the greatest pointer is one. Method: each number at its bound."""
    value = packed(PARTITIONS_MAX - 1, 2**63 - 1, RECORD_MAX_BYTES)
    assert pointer_in(value) == Pointer(PARTITIONS_MAX - 1, 2**63 - 1, RECORD_MAX_BYTES, bytes(32))


def test_a_payload_that_is_a_request_of_format_2_is_merged() -> None:
    """Goal: the record is the payload. Method: a pointer to a request."""
    value = pointer_to(REQUEST, 0, 0)
    pointer = pointer_in(value)
    assert pointer is not None
    assert merged(value, pointer, REQUEST, "log-payloads") == REQUEST


@pytest.mark.parametrize("payload", [b"", b"\x97\x00", b"\x96\x01\x01", b"\x95\x02\x02", pointer_to(REQUEST, 0, 0)])
def test_a_payload_that_is_no_such_request_stays_a_pointer(payload: bytes) -> None:
    """Goal: no barrier and no sign of life comes in this way, nor a second pointer. Method: pointers
    to such payloads; the value itself is what is read."""
    assert not may_be_split(payload)
    value = pointer_to(payload, 0, 0)
    pointer = pointer_in(value)
    assert pointer is not None
    assert merged(value, pointer, payload, "log-payloads") == value


@pytest.mark.parametrize("payload", [REQUEST[:-1], REQUEST + b"\0", REQUEST[:-1] + b"\1"])
def test_another_payload_is_refused(payload: bytes) -> None:
    """Goal: never another record than was written, and never void. Method: change length and content."""
    value = pointer_to(REQUEST, 5, 77)
    pointer = pointer_in(value)
    assert pointer is not None
    with pytest.raises(LogRefused, match="offset 77 of partition 5 of topic log-payloads") as refused:
        merged(value, pointer, payload, "log-payloads")
    assert refused.value.code is Code.LOG_PAYLOAD_MISSING
