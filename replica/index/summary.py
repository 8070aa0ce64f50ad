"""A summary of an index: two indexes can be compared without comparing every entry."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

import msgspec

from replica.notary.position import Position

_MODULUS = 1 << 256


class IndexSummary(msgspec.Struct, frozen=True):
    """Position, number of entries, and a digest that does not depend on their order.

    The digest is the sum of SHA-256(key | value) over all entries, modulo 2^256, as 32 bytes, big-endian. Keys of one
    kind have one length, so that no two entries share the bytes that are hashed.
    """

    position: Position | None
    entry_count: int
    digest: bytes


def summarise(position: Position | None, entries: Iterable[tuple[bytes, bytes]]) -> IndexSummary:
    """Read all entries once, in any order; takes about 2 microseconds per entry."""
    return add_entries(IndexSummary(position, 0, bytes(32)), position, entries)


def add_entries(
    summary: IndexSummary, position: Position | None, entries: Iterable[tuple[bytes, bytes]]
) -> IndexSummary:
    """The summary of an index after adding these entries, all of them new, and moving to another position."""
    count, total = summary.entry_count, int.from_bytes(summary.digest, "big")
    for key, value in entries:
        count += 1
        total += int.from_bytes(sha256(key + value).digest(), "big")
    return IndexSummary(position, count, (total % _MODULUS).to_bytes(32, "big"))
