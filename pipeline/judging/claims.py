"""What each counting request wants of the index: its id for its content, its inputs for its id, and a look at others.

A claim has a fixed width, so that millions of them are one array, and sorts by key and then by offset as bytes do. They
travel in packs: the claims of a slice on one range of keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256

import numpy as np

from pipeline.judging.columns import Array, Columns
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
CONSUMES, CLOSED = 1, 2
"""Bits of a role. Without CONSUMES the state is only referred to; CLOSED: the request is outside its time window.

A request outside its window never adds to the index: what it could add was added before, or never is.
"""

_KEY, _OFFSET, _ROLE, _STANDS = slice(1, 37), slice(37, 45), 45, slice(46, 78)


def claims_of(columns: Columns, found: Counted, *, closed: bool) -> Array:
    """The claims of a slice's counting requests; of those outside their window only if `closed`.

    Verdicts need the claims of all requests, the index only those of requests inside their window.
    """
    pick = found.requests
    is_open = (columns.from_us[pick] <= found.judged_us) & (found.judged_us < columns.until_us[pick])
    if not closed:
        pick, is_open = pick[is_open], is_open[is_open]
    offsets = columns.first_offset + columns.rows[pick]
    roles = np.where(is_open, 0, CLOSED).astype(np.uint8)
    tx_ids = columns.tx_ids()[pick]
    no_index = np.zeros((len(pick), 4), np.uint8)
    own_keys = np.concatenate((_bytes(tx_ids, 32), no_index), axis=1)
    packs = [_pack(TX_KEY, own_keys, offsets, roles | CONSUMES, content_digests(columns, pick))]
    for references, role in ((False, CONSUMES), (True, 0)):
        owner, refs = columns.refs(pick, references=references)
        packs.append(_pack(STATE_KEY, _bytes(refs, 36), offsets[owner], roles[owner] | role, tx_ids[owner]))
    return joined(packs)


def joined(parts: list[Array]) -> Array:
    """Claims one after the other. (Numpy's own way would turn their offsets into the machine's byte order.)"""
    raw = [np.ascontiguousarray(part).view(np.uint8) for part in parts]
    return np.concatenate(raw or [np.zeros(0, np.uint8)]).view(CLAIM)


def content_digests(columns: Columns, pick: Array) -> Array:
    """The content digest of the requests picked, V32."""
    data = columns.raw.tobytes()
    starts, ends = (edge[pick].tolist() for edge in columns.content_at())
    digests = [sha256(CONTENT_TAG + data[start:end]).digest() for start, end in zip(starts, ends, strict=True)]
    return np.frombuffer(b"".join(digests), "V32")


def sample_keys(columns: Columns, count: int) -> list[bytes]:
    """About `count` of a slice's keys, evenly picked: where the borders between ranges of keys should be."""
    pick = np.arange(0, len(columns.rows), max(1, len(columns.rows) // max(1, count // 4)))
    tx_keys = [TX_KEY + tx_id for tx_id in columns.tx_ids()[pick].tolist()]
    _, refs = columns.refs(pick)
    state_keys = [STATE_KEY + ref for ref in refs.tolist()]
    return tx_keys + state_keys[:: max(1, len(state_keys) // count)]


def borders_between(samples: list[bytes], buckets: int) -> Array:
    """Keys that part the index into at most so many ranges of about equal size; each begins a range."""
    ordered = np.sort(np.array(samples or [b""], "S37"))
    at = np.arange(1, buckets) * len(ordered) // buckets
    return np.unique(ordered[at])


def packs(claims: Array, borders: Array) -> Iterator[tuple[int, bytes]]:
    """The claims by range of keys: (number of the range, claims)."""
    buckets = np.searchsorted(borders, claims["key"], side="right").astype(np.uint16)
    order = np.argsort(buckets, kind="stable")
    claims, buckets = claims.take(order), buckets.take(order)
    edges = np.flatnonzero(np.diff(buckets, prepend=-1, append=-1))
    for start, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        yield int(buckets[start]), claims[start:end].tobytes()


def unpack(found: list[bytes]) -> Array:
    """The claims of some packs, by key and then offset."""
    claims = np.frombuffer(b"".join(found), CLAIM)
    return claims.take(np.argsort(claims.view(f"S{CLAIM.itemsize}")))


def _bytes(fixed: Array, size: int) -> Array:
    return fixed.view(np.uint8).reshape(-1, size)


def _pack(kind: bytes, keys: Array, offsets: Array, roles: Array, stands: Array) -> Array:
    packed = np.empty((len(offsets), CLAIM.itemsize), np.uint8)
    packed[:, 0] = kind[0]
    packed[:, _KEY] = keys
    packed[:, _OFFSET] = _bytes(offsets.astype(">u8"), 8)
    packed[:, _ROLE] = roles
    packed[:, _STANDS] = _bytes(np.ascontiguousarray(stands), 32)
    return packed.view(CLAIM).reshape(-1)
