"""The claims of each counting request on the index: its id for its content, its inputs for its id, its references.

A claim has a fixed width, so that millions of them are one array. Claims sort by key and then by offset, as bytes do.
The first eight bytes of a key nearly always differ from its neighbours', and are compared as one number. Only claims
with equal first bytes, by chance or by intent, are compared in full.
"""

from __future__ import annotations

from hashlib import sha256

import numpy as np

from pipeline.judging.columns import Columns
from pipeline.judging.cursor import Array
from pipeline.judging.plan import Counted
from replica.notary.canonical import CONTENT_TAG
from replica.notary.rules import STATE_KEY, TX_KEY

CLAIM = np.dtype(
    [
        ("key", "S37"),  # the index key; that of a transaction id is shorter, and padded with zeros
        ("offset", ">u8"),
        ("role", "u1"),
        ("stands", "V32"),  # what the key would stand for: content digest of an id, consuming id of a state
    ]
)
CLAIM_BYTES = CLAIM.itemsize
CONSUMES, CLOSED, LOST = 1, 2, 4
"""Bits of a role. Without CONSUMES the state is only referred to; CLOSED: the request is outside its time window;
LOST: the record is lost, and its salvage has the claim as an entry of the index (lost.py).

A request outside its window never adds to the index of states: what it could add was added before, or never is. Yet it
may be an acceptance of its command, if it repeats what was notarised (commands.py).
"""

_KEY, _OFFSET, _ROLE, _STANDS = slice(1, 37), slice(37, 45), 45, slice(46, 78)


def claims_of(columns: Columns, found: Counted, barred: Array) -> Array:
    """The claims of a slice's counting requests, in any order; none of those that are `barred` (keys.py).

    Verdicts and acceptances need those of requests outside their window as well.
    """
    is_open = inside_window(columns, found)
    chosen = barred == 0
    pick, is_open = found.requests[chosen], is_open[chosen]
    offsets = columns.first_offset + columns.rows[pick]
    roles = np.where(is_open, 0, CLOSED).astype(np.uint8)
    tx_ids = columns.tx_ids()[pick]
    owner, inputs = columns.refs(pick)
    referrer, references = columns.refs(pick, references=True)
    packed = np.zeros((len(pick) + len(owner) + len(referrer), CLAIM_BYTES), np.uint8)
    states, ends = len(pick), len(pick) + len(owner)
    digests, consumes = content_digests(columns, pick), roles | CONSUMES
    _fill(packed[:states], TX_KEY, _bytes(tx_ids, 32), digests, offsets=offsets, roles=consumes)
    for part, who, refs, role in (
        (packed[states:ends], owner, inputs, consumes),
        (packed[ends:], referrer, references, roles),
    ):
        _fill(part, STATE_KEY, _bytes(refs, 36), tx_ids[who], offsets=offsets[who], roles=role[who])
    return packed.view(CLAIM).reshape(-1)


def inside_window(columns: Columns, found: Counted) -> Array:
    """Which of a slice's counting requests are judged inside their time window."""
    pick = found.requests
    inside: Array = (columns.from_us[pick] <= found.judged_us) & (found.judged_us < columns.until_us[pick])
    return inside


def _fill(packed: Array, kind: bytes, keys: Array, stands: Array, *, offsets: Array, roles: Array) -> None:
    packed[:, 0] = kind[0]
    packed[:, 1 : 1 + keys.shape[1]] = keys
    packed[:, _OFFSET] = _bytes(offsets.astype(">u8"), 8)
    packed[:, _ROLE] = roles
    packed[:, _STANDS] = _bytes(stands, 32)


def content_digests(columns: Columns, pick: Array) -> Array:
    """The content digest of the requests picked, V32."""
    data = columns.raw.tobytes()
    starts, ends = (edge[pick].tolist() for edge in columns.content_at())
    digests = [sha256(CONTENT_TAG + data[start:end]).digest() for start, end in zip(starts, ends, strict=True)]
    return np.frombuffer(b"".join(digests), "V32")


def taken(rows: Array, which: Array) -> Array:
    """The claims (or commands) at these places, or where this is true."""
    places = np.flatnonzero(which) if which.dtype == np.bool_ else which
    opaque = np.dtype(f"V{rows.itemsize}")  # moved whole; numpy moves a record of fields field by field
    found: Array = np.ascontiguousarray(rows).view(opaque).take(places).view(rows.dtype)
    return found


def joined(one: Array, other: Array) -> Array:
    """All rows of both. Whole: numpy joins records of fields in the processor's own byte order."""
    opaque = np.dtype(f"V{one.itemsize}")
    found: Array = np.concatenate((one.view(opaque), other.view(opaque))).view(one.dtype)
    return found


def prefixes(rows: Array) -> Array:
    """The first eight bytes of each key as a number. Numbers order as their keys do, except where they are equal."""
    strided = np.ndarray((len(rows),), ">u8", np.ascontiguousarray(rows), strides=(rows.itemsize,))
    return strided.astype(np.uint64)


def kinds(claims: Array) -> Array:
    """The first byte of each key."""
    found: Array = np.ndarray((len(claims),), np.uint8, np.ascontiguousarray(claims), strides=(CLAIM_BYTES,))
    return found


def near(ordered: Array) -> Array:
    """Which of some ascending numbers equal the one before or the one after."""
    same = ordered[1:] == ordered[:-1]
    found = np.zeros(len(ordered), np.bool_)
    found[1:] = same
    found[:-1] |= same
    return found


def groups(keys: Array) -> tuple[Array, Array]:
    """For keys in order: the number of each one's group of equals, and where each group starts."""
    if not len(keys):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    begins = np.concatenate(([True], keys[1:] != keys[:-1]))
    return np.cumsum(begins) - 1, np.flatnonzero(begins)


def in_order(rows: Array) -> Array:
    """The places of claims (or commands) by key and then offset."""
    numbers = prefixes(rows)
    order = np.argsort(numbers)
    unsure = np.flatnonzero(near(numbers[order]))
    if len(unsure):
        among = order[unsure]  # runs of equal numbers, next to each other: sorted in full, they stay in their places
        order[unsure] = among[np.argsort(taken(rows, among).view(f"S{rows.itemsize}"))]
    return order


def sample_keys(columns: Columns, count: int) -> list[bytes]:
    """About `count` of a slice's keys, evenly picked: where the borders between ranges of keys should be."""
    pick = np.arange(0, len(columns.rows), max(1, len(columns.rows) // max(1, count // 4)))
    tx_keys = [TX_KEY + tx_id for tx_id in columns.tx_ids()[pick].tolist()]
    _, refs = columns.refs(pick)
    state_keys = [STATE_KEY + ref for ref in refs.tolist()]
    return tx_keys + state_keys[:: max(1, len(state_keys) // count)]


def borders_between(samples: list[bytes], ranges: int) -> Array:
    """Keys that part the index into at most so many ranges of about equal size; each begins a range."""
    ordered = np.sort(np.array(samples or [b""], "S37"))
    at = np.arange(1, ranges) * len(ordered) // ranges
    return np.unique(ordered[at])


def by_range(claims: Array, borders: Array) -> tuple[Array, Array]:
    """The claims range by range, and where each range begins, the end of the last one after them."""
    numbers = prefixes(claims)
    edges = np.array([int.from_bytes(border[:8].ljust(8, b"\0")) for border in borders.tolist()], np.uint64)
    ranges = np.searchsorted(edges, numbers, side="right")
    below = np.concatenate((np.zeros(1, np.uint64), edges))
    unsure = np.flatnonzero(below[ranges] == numbers)  # as a border begins
    ranges[unsure] = np.searchsorted(borders, claims["key"][unsure], side="right")
    order = np.argsort(ranges.astype(np.uint16), kind="stable")
    starts = np.searchsorted(ranges, np.arange(len(borders) + 2), sorter=order)
    return taken(claims, order), starts


def _bytes(fixed: Array, size: int) -> Array:
    return np.ascontiguousarray(fixed).view(np.uint8).reshape(-1, size)
