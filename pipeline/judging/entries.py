"""What is left once the losers are known: the index's entries, and the verdict on each request."""

from __future__ import annotations

import numpy as np

from pipeline.judging.claims import CLOSED, CONSUMES
from pipeline.judging.columns import Array
from pipeline.judging.contested import groups
from replica.notary.errors import InvariantBroken
from replica.notary.rules import TX_KEY

TX_KEY_BYTES = 33
DUPLICATE, REUSED, CONFLICT, WINDOW = range(4)
"""Why a request is not notarised at its own offset; the lowest that applies is its verdict, as in `rules`."""

EXCEPTION = np.dtype([("offset", "i8"), ("reason", "u1"), ("notarised_offset", "i8")])
"""A reason against a request; `notarised_offset` only means something for a DUPLICATE."""


def entries(claims: Array, dropped: Array) -> Array:
    """Of claims in order: those that became entries of the index, in order, each key once. `dropped` ascends.

    Raises InvariantBroken if what is left of a key is still contested: then the losers were not all found.
    """
    wins = (claims["role"] & (CONSUMES | CLOSED) == CONSUMES) & ~_among(claims["offset"], dropped)
    left = claims[wins]
    group, starts = groups(left["key"])
    first: Array = left.take(starts)
    if np.any(left["stands"] != first["stands"][group]):
        raise InvariantBroken("two transactions would have the same entry of the index")
    return first


def key_values(found: Array) -> tuple[list[bytes], list[bytes]]:
    """Keys and values of entries as the index stores them."""
    packed = found.view(np.uint8).reshape(len(found), found.itemsize)
    keys = [
        key if key[:1] != TX_KEY else key[:TX_KEY_BYTES]
        for key in np.ascontiguousarray(packed[:, :37]).view("V37").ravel().tolist()
    ]
    values = np.concatenate((packed[:, 46:78], packed[:, 37:45]), axis=1)
    return keys, values.view("V40").ravel().tolist()


def exceptions(claims: Array, found: Array) -> Array:
    """All that stands against a request in one range of keys; `found`: the range's entries. See EXCEPTION.

    A request without any exception, in any range, is notarised at its own offset.
    """
    against, entry = _too_late(claims, found)
    same = against["stands"] == entry["stands"]
    reason = np.where(_of_tx_id(against), np.where(same, DUPLICATE, REUSED), CONFLICT)
    closed = claims[(claims["role"] & CLOSED != 0) & _of_tx_id(claims)]
    made = np.zeros(len(against) + len(closed), EXCEPTION)
    made["offset"] = np.concatenate((against["offset"], closed["offset"]))
    made["reason"][: len(against)] = reason
    made["reason"][len(against) :] = WINDOW
    made["notarised_offset"][: len(against)] = entry["offset"]
    return made


def conflicts(claims: Array, found: Array) -> tuple[Array, Array]:
    """Claims, in one range of keys, on states that were consumed before, and the entry that stands in each one's way.

    What a request whose verdict is CONFLICT is told; of other requests they mean nothing.
    """
    against, entry = _too_late(claims, found)
    of_states = ~_of_tx_id(against)
    return against[of_states], entry[of_states]


def _too_late(claims: Array, found: Array) -> tuple[Array, Array]:
    """Claims on keys that were recorded at a lower offset, and what was recorded."""
    at = np.searchsorted(found["key"], claims["key"])
    known = at < len(found)
    known[known] = found["key"][at[known]] == claims["key"][known]
    against, entry = claims[known], found[at[known]]
    later = against["offset"] > entry["offset"]
    return against[later], entry[later]


def _of_tx_id(claims: Array) -> Array:
    return np.strings.startswith(claims["key"], TX_KEY)


def _among(offsets: Array, dropped: Array) -> Array:
    at = np.searchsorted(dropped, offsets)
    return (
        (at < len(dropped)) & (dropped[np.minimum(at, len(dropped) - 1)] == offsets)
        if len(dropped)
        else at > len(dropped)
    )
