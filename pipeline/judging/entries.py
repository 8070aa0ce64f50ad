"""The results once the losers are known: the index's entries, and the verdict on each request."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pipeline.judging.claims import CLAIM_BYTES, CLOSED, CONSUMES, LOST, groups, kinds, near, prefixes, taken
from pipeline.judging.cursor import Array
from pipeline.judging.marks import is_marked
from pipeline.judging.reasons import CONFLICT, DUPLICATE, EXCEPTION, REUSED, WINDOW
from replica.notary.errors import IndexMismatch, InvariantBroken
from replica.notary.rules import STATE_KEY, TX_KEY

KEY_BYTES, TX_KEY_BYTES = 37, 33
_BLOCK_ROWS = 1 << 14


def entries(claims: Array, dropped: Array) -> Array:
    """Of claims in order: those that became entries of the index, in order, each key once.

    `dropped`: the requests that get nothing of what they contested, as `offsets_marked` has them. Raises
    InvariantBroken if what is left of a key is still contested: then the losers were not all found. Raises
    IndexMismatch where a salvage has an entry whose key the log itself had given before: a reader stops there.
    """
    wins = (claims["role"] & (CONSUMES | CLOSED) == CONSUMES) & ~is_marked(dropped, claims["offset"])
    left = taken(claims, wins)
    keep = ~near(prefixes(left))
    again = np.flatnonzero(~keep)
    same = taken(left, again)
    group, starts = groups(same["key"])
    if np.any(same["stands"] != same["stands"].take(starts)[group]):
        raise InvariantBroken("two transactions would have the same entry of the index")
    keep[again[starts]] = True
    found = left if np.all(keep) else taken(left, keep)
    if _lost_count(found) != _lost_count(claims):
        raise IndexMismatch("the salvage of a lost range contradicts the log before it")
    return found


def _lost_count(claims: Array) -> int:
    return int(np.count_nonzero(claims["role"] & LOST))


def key_values(found: Array) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of entries, in order, as the index stores them."""
    states = int(np.searchsorted(kinds(found), TX_KEY[0]))
    for part, key_bytes in ((found[:states], KEY_BYTES), (found[states:], TX_KEY_BYTES)):
        for start in range(0, len(part), _BLOCK_ROWS):
            packed = part[start : start + _BLOCK_ROWS].view(np.uint8).reshape(-1, CLAIM_BYTES)
            values = np.concatenate((packed[:, 46:78], packed[:, 37:45]), axis=1)
            keys = np.ascontiguousarray(packed[:, :key_bytes]).view(f"V{key_bytes}").ravel().tolist()
            yield from zip(keys, values.view("V40").ravel().tolist(), strict=True)


def exceptions(claims: Array, found: Array) -> Array:
    """All that stands against a request in one range of keys; `found`: the range's entries. See EXCEPTION.

    A request without any exception, in any range or by its command, is notarised at its own offset.
    """
    against, entry = _too_late(claims, found)
    same = against["stands"] == entry["stands"]
    reason = np.where(kinds(against) == TX_KEY[0], np.where(same, DUPLICATE, REUSED), CONFLICT)
    closed = taken(claims, (claims["role"] & CLOSED != 0) & (kinds(claims) == TX_KEY[0]))
    made = np.zeros(len(against) + len(closed), EXCEPTION)
    made["offset"] = np.concatenate((against["offset"], closed["offset"]))
    made["reason"][: len(against)] = reason
    made["reason"][len(against) :] = WINDOW
    made["notarised_offset"][: len(against)] = entry["offset"]
    return made


def conflicts(claims: Array, found: Array) -> tuple[Array, Array]:
    """Claims, in one range of keys, on states that were consumed before, and the entry that stands in each one's way.

    They are part of the answer to a request whose verdict is CONFLICT; for other requests they mean nothing.
    """
    against, entry = _too_late(claims, found)
    of_states = kinds(against) == STATE_KEY[0]
    return taken(against, of_states), taken(entry, of_states)


def _too_late(claims: Array, found: Array) -> tuple[Array, Array]:
    """Claims on keys that were recorded at a lower offset, and what was recorded."""
    claims = taken(claims, near(prefixes(claims)))  # no request but its own recorded the key of any other claim
    at = np.searchsorted(found["key"], claims["key"])
    known = at < len(found)
    known[known] = found["key"][at[known]] == claims["key"][known]
    against, entry = taken(claims, known), taken(found, at[known])
    later = against["offset"] > entry["offset"]
    return taken(against, later), taken(entry, later)
