"""Columns of a batch as Postgres arrays in their binary form, built by hand.

psycopg accepts lists, but that takes twice the client's processor time of a whole publication. Here a
column is one `bytes.join`.

The form: dimensions, whether there may be NULLs, element type, number of elements, first index (each 32 bits), then for
each element its length (-1 for NULL) and its bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import psycopg
from psycopg.adapt import Dumper
from psycopg.pq import Format

from replica.notary.errors import InvariantBroken

ID_BYTES = 32  # change ids, transaction ids and content digests are all SHA-256 values or as long as one
_BYTEA, _INT8, _TEXT = 17, 20, 25  # Postgres's numbers of the element types, the same for ever
_BYTEA_ARRAY, _INT8_ARRAY, _TEXT_ARRAY = 1001, 1016, 1009

_header = struct.Struct(">iiiii").pack
_length = struct.Struct(">i").pack
_int8 = struct.Struct(">iq").pack
_NULL = _length(-1)


class ByteaArray(bytes):
    """bytea[]"""


class Int8Array(bytes):
    """bigint[]"""


class TextArray(bytes):
    """text[]"""


def ids(values: Sequence[bytes]) -> ByteaArray:
    """A column of ids. Raises InvariantBroken when one does not have ID_BYTES."""
    if not values:
        return byteas(values)
    if set(map(len, values)) != {ID_BYTES}:
        raise InvariantBroken(f"an id has {ID_BYTES} bytes")
    length = _length(ID_BYTES)
    return ByteaArray(_header(1, 0, _BYTEA, len(values), 1) + length + length.join(values))


def byteas(values: Sequence[bytes]) -> ByteaArray:
    """A column of byte strings of any length."""
    return ByteaArray(_header(1, 0, _BYTEA, len(values), 1) + _elements(values))


def int8s(values: Sequence[int | None]) -> Int8Array:
    """A column of 64-bit integers or NULLs."""
    elements = [_NULL if value is None else _int8(8, value) for value in values]
    return Int8Array(_header(1, 1, _INT8, len(values), 1) + b"".join(elements))


def texts(values: Sequence[str]) -> TextArray:
    """A column of texts."""
    return TextArray(_header(1, 0, _TEXT, len(values), 1) + _elements(list(map(str.encode, values))))


def _elements(values: Sequence[bytes]) -> bytes:
    if len(lengths := set(map(len, values))) == 1:  # as for ids, and texts that are all made in the same way
        length = _length(lengths.pop())
        return length + length.join(values)
    return b"".join([part for value in values for part in (_length(len(value)), value)])


class _ArrayDumper(Dumper):
    """Passes the bytes on unchanged."""

    format = Format.BINARY

    def dump(self, obj: bytes) -> bytes:
        return obj


class _ByteaArrayDumper(_ArrayDumper):
    oid = _BYTEA_ARRAY


class _Int8ArrayDumper(_ArrayDumper):
    oid = _INT8_ARRAY


class _TextArrayDumper(_ArrayDumper):
    oid = _TEXT_ARRAY


def register(connection: psycopg.AsyncConnection[object]) -> None:
    """Make a connection understand these types. May be repeated."""
    adapters = connection.adapters
    adapters.register_dumper(ByteaArray, _ByteaArrayDumper)
    adapters.register_dumper(Int8Array, _Int8ArrayDumper)
    adapters.register_dumper(TextArray, _TextArrayDumper)
