"""MessagePack in its shortest encoding, as far as records need it: nil, integers, text, byte strings, arrays."""

from __future__ import annotations

import struct
from typing import Any

Value = Any
"""None, an integer, a text, a byte string, or a list of values."""

_LENGTHS = {0xC4: ">B", 0xC5: ">H", 0xC6: ">I", 0xD9: ">B", 0xDA: ">H", 0xDB: ">I", 0xDC: ">H", 0xDD: ">I"}
_INTEGERS = {
    0xCC: ">B",
    0xCD: ">H",
    0xCE: ">I",
    0xCF: ">Q",
    0xD0: ">b",
    0xD1: ">h",
    0xD2: ">i",
    0xD3: ">q",
}


class NotShortest(ValueError):
    """The bytes are not the shortest encoding of any value that records have."""


def pack(value: Value) -> bytes:
    """The shortest encoding of a value."""
    if value is None:
        return b"\xc0"
    if isinstance(value, int):
        return _pack_integer(value)
    if isinstance(value, bytes):
        return _head(len(value), None, 0, (0xC4, 0xC5, 0xC6)) + value
    if isinstance(value, str):
        raw = value.encode()
        return _head(len(raw), 0xA0, 32, (0xD9, 0xDA, 0xDB)) + raw
    return _head(len(value), 0x90, 16, (None, 0xDC, 0xDD)) + b"".join(map(pack, value))


def unpack(raw: bytes) -> Value:
    """The value of these bytes. Raises NotShortest for any that `pack` would not make."""
    try:
        value, end = _unpack(raw, 0)
    except (IndexError, struct.error, UnicodeDecodeError, RecursionError) as error:
        raise NotShortest(str(error)) from None
    if end != len(raw) or pack(value) != raw:
        raise NotShortest("bytes follow, or another encoding is shorter")
    return value


def _pack_integer(value: int) -> bytes:
    if 0 <= value < 128:
        return bytes([value])
    if -32 <= value < 0:
        return struct.pack(">b", value)
    heads = (0xCC, 0xCD, 0xCE, 0xCF) if value >= 0 else (0xD0, 0xD1, 0xD2, 0xD3)
    for head in heads:
        try:
            return bytes([head]) + struct.pack(_INTEGERS[head], value)
        except struct.error:
            continue
    raise ValueError(f"{value} has more than 64 bits")


def _head(length: int, short: int | None, below: int, heads: tuple[int | None, int, int]) -> bytes:
    if short is not None and length < below:
        return bytes([short | length])
    for head, bound in zip(heads, (2**8, 2**16, 2**32), strict=True):
        if head is not None and length < bound:
            return bytes([head]) + struct.pack(_LENGTHS[head], length)
    raise ValueError(f"a length of {length}")


def _unpack(raw: bytes, at: int) -> tuple[Value, int]:
    head, at = raw[at], at + 1
    if head < 0x80:
        return head, at
    if head >= 0xE0:
        return head - 256, at
    if head == 0xC0:
        return None, at
    if head in _INTEGERS:
        return _number(raw, at, _INTEGERS[head])
    if 0x90 <= head < 0xA0:
        return _array(raw, at, head & 15)
    if 0xA0 <= head < 0xC0:
        return _take(raw, at, head & 31).decode(), at + (head & 31)
    if head not in _LENGTHS:
        raise NotShortest(f"byte {head:02x} begins no value of a record")
    length, at = _number(raw, at, _LENGTHS[head])
    if head >= 0xDC:
        return _array(raw, at, length)
    taken = _take(raw, at, length)
    return (taken if head <= 0xC6 else taken.decode()), at + length


def _number(raw: bytes, at: int, layout: str) -> tuple[int, int]:
    (number,) = struct.unpack_from(layout, raw, at)
    return int(number), at + struct.calcsize(layout)


def _array(raw: bytes, at: int, length: int) -> tuple[list[Value], int]:
    values: list[Value] = []
    for _ in range(length):
        value, at = _unpack(raw, at)
        values.append(value)
    return values, at


def _take(raw: bytes, at: int, length: int) -> bytes:
    if at + length > len(raw):
        raise NotShortest("a value goes on after the end")
    return raw[at : at + length]
