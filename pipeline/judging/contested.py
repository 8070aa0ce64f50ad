"""Decides which requests lose a contested key: the only part of judging that needs the log's order, for few requests.

"The first request that names a state gets it" is wrong. A request gets all its states or none: when it is refused for
one, the others stay free for later requests. `A{x} B{x,y} C{y}`: B loses x to A, so C gets y.

A key is contested if one request wants to consume it and another, of another id or content, names it. Requests that
name contested keys are decided in log order by these keys alone, because no other request names their other keys.
A request that names a taken key is dropped, whatever the reason: conflict, a reused id, or a repetition.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from pipeline.judging.claims import CLOSED, CONSUMES, near, prefixes, taken
from pipeline.judging.cursor import Array
from replica.notary.errors import InvariantBroken


def contested(claims: Array, order: Array) -> Array:
    """The claims whose key is contested, by key; those outside their window are passed over. `order`: `in_order`."""
    claims = taken(claims, order[near(prefixes(claims)[order])])  # no other request names the key of any other claim
    claims = taken(claims, claims["role"] & CLOSED == 0)
    group, starts = groups(claims["key"])
    if not len(starts):
        return claims
    rivals = claims["stands"] != claims["stands"].take(starts)[group]
    consumed = claims["role"] & CONSUMES != 0
    is_contested = np.logical_or.reduceat(rivals, starts) & np.logical_or.reduceat(consumed, starts)
    return taken(claims, is_contested[group])


def groups(keys: Array) -> tuple[Array, Array]:
    """For keys in order: the number of each one's group of equals, and where each group starts."""
    if not len(keys):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    begins = np.concatenate(([True], keys[1:] != keys[:-1]))
    return np.cumsum(begins) - 1, np.flatnonzero(begins)


def offsets_marked(offsets: Iterable[int], end_offset: int) -> Array:
    """A bit for each offset below `end_offset`, set for these: small enough to be asked about every claim."""
    bits = np.zeros(end_offset // 8 + 1, np.uint8)
    at = np.fromiter(offsets, np.int64)
    np.bitwise_or.at(bits, at >> 3, np.left_shift(1, at & 7).astype(np.uint8))
    return bits


def is_marked(bits: Array, offsets: Array) -> Array:
    """Which of these offsets have their bit set."""
    at = offsets.astype(np.int64)
    found: Array = bits[at >> 3] >> (at & 7).astype(np.uint8) & 1 != 0
    return found


class Resolver:
    """Decides contested claims, given in log order and with each record's claims together.

    Holds the contested keys that are taken: memory for contested keys, not for the log.
    """

    def __init__(self) -> None:
        self._taken: set[bytes] = set()
        self._last = -1

    def dropped(self, records: Iterable[tuple[int, list[tuple[bytes, bool]]]]) -> list[int]:
        """The offsets, of records (offset, [(key, whether it would be consumed)]), that get nothing."""
        dropped = []
        for offset, claims in records:
            if offset <= self._last:
                raise InvariantBroken(f"contested records out of order: {offset} after {self._last}")
            self._last = offset
            if any(key in self._taken for key, _ in claims):
                dropped.append(offset)
            else:
                self._taken.update(key for key, consumes in claims if consumes)
        return dropped
