"""Decodes a slice of the log into columns: what `decode_record` and `decode_request` say of each record, but at once.

Two ways, one answer. The usual shape of a record is recognised with array operations, and only if every byte of it is
accounted for; whatever is not recognised is given to the notary's own functions, one record at a time. So the fast way
may miss valid records, which costs time, but never accepts one that the notary's functions would not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from replica.notary.canonical import REQUEST_TAG, decode_request
from replica.notary.errors import BadRequest
from replica.notary.records import FORMAT, BarrierRecord, RequestRecord, Undecodable, decode_record
from replica.notary.requests import ID_MAX_BYTES, PARTY_MAX_BYTES, STATE_REF_BYTES, STATES_LIMIT

Array = npt.NDArray[Any]

UNDECODABLE, BARRIER, REQUEST, SETTLEMENT, BAD_REQUEST = range(5)
"""Kinds of record. BAD_REQUEST: a request record whose request is not canonical."""

_PADDING = 1 << 10  # reads past the last record stay inside the buffer, and find no header there
_FORMAT_1_HEAD = 0x960101C410  # array of six, kind 1, format 1, bin of 16
_ID_AT, _COUNTS_AT, _REFS_AT = 16, 48, 52
_WINDOW_BYTES = 17

_UINT_SIZE = np.zeros(256, np.int64)  # of a MessagePack unsigned integer, by its first byte; 0: it is none
_UINT_SIZE[:0x80] = 1
_UINT_SIZE[[0xCC, 0xCD, 0xCE, 0xCF]] = 2, 3, 5, 9
_BIN_HEAD = np.zeros(256, np.int64)  # of a byte string's head
_BIN_HEAD[[0xC4, 0xC5, 0xC6]] = 2, 3, 5
_STR_HEAD = np.zeros(256, np.int64)
_STR_HEAD[0xA0:0xC0] = 1
_STR_HEAD[[0xD9, 0xDA, 0xDB]] = 2, 3, 5


@dataclass(frozen=True, slots=True)
class Columns:
    """A slice of the log; arrays of one length, but those of requests, which have an element for each in `rows`.

    `raw` holds all values, one after the other, and some padding; positions are into it. `stamp_us` is 0 and `sequence`
    -1 where a record has none.
    """

    raw: Array  # bytes
    first_offset: int
    value_at: Array
    value_bytes: Array
    kind: Array
    activation: Array  # S16
    sequence: Array
    stamp_us: Array
    barriers: list[tuple[int, BarrierRecord]]  # every record that is one, in force or not: (offset, record)
    rows: Array  # rows that are requests, ascending
    canonical_at: Array
    canonical_bytes: Array
    inputs_n: Array
    references_n: Array
    from_us: Array  # 0 where the window is open to that side
    until_us: Array  # the largest number where it is
    public_key_at: Array
    signature_at: Array

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def offsets(self) -> Array:
        """Of each record."""
        return np.arange(self.first_offset, self.first_offset + len(self), dtype=np.int64)

    def value(self, row: int) -> bytes:
        """A record's bytes."""
        at = int(self.value_at[row])
        return self.raw[at : at + int(self.value_bytes[row])].tobytes()

    def at(self, positions: Array, size: int) -> Array:
        """The `size` bytes at each position, as fixed byte strings."""
        return gather(self.raw, positions, f"V{size}")

    def tx_ids(self) -> Array:
        """Transaction id of each request, V32."""
        return self.at(self.canonical_at + _ID_AT, 32)

    def content_at(self) -> tuple[Array, Array]:
        """Start and end of what each request's content digest covers, besides its tag."""
        states = self.inputs_n + self.references_n
        start = self.canonical_at + _COUNTS_AT
        return start, start + 4 + STATE_REF_BYTES * states + _WINDOW_BYTES

    def refs(self, pick: Array, *, references: bool = False) -> tuple[Array, Array]:
        """Inputs (or references) of the requests picked: for each state, which of the picked, and its 36 bytes."""
        counts = (self.references_n if references else self.inputs_n)[pick]
        starts = self.canonical_at[pick] + _REFS_AT
        if references:
            starts = starts + STATE_REF_BYTES * self.inputs_n[pick]
        owner, positions = spread(starts, counts, STATE_REF_BYTES)
        return owner, self.at(positions, STATE_REF_BYTES)


def gather(raw: Array, positions: Array, dtype: str) -> Array:
    """The elements of `dtype` at byte positions, aligned or not."""
    size = np.dtype(dtype).itemsize
    everywhere = np.ndarray((len(raw) - size + 1,), f"V{size}", raw.data, strides=(1,))
    return everywhere[positions].view(dtype)


def spread(starts: Array, counts: Array, step: int) -> tuple[Array, Array]:
    """Positions of runs of `counts` items, `step` bytes each, and which run each belongs to."""
    owner = np.repeat(np.arange(len(counts)), counts)
    ends = np.cumsum(counts)
    within = np.arange(len(owner)) - np.repeat(ends - counts, counts)
    return owner, starts[owner] + step * within


def decode(first_offset: int, values: pa.Array) -> Columns:
    """Columns of records with dense offsets from `first_offset`; a null value is read as b'', as a replica does."""
    raw, value_at, value_bytes = _buffer(values)
    return _Decoding(raw, first_offset, value_at, value_bytes).columns()


def _buffer(values: pa.Array) -> tuple[Array, Array, Array]:
    if values.null_count:
        values = values.fill_null(b"")
    wide = values.cast(pa.large_binary())
    offsets = np.frombuffer(wide.buffers()[1], np.int64)[wide.offset : wide.offset + len(wide) + 1]
    size = int(offsets[-1] - offsets[0])
    raw = np.zeros(size + _PADDING, np.uint8)
    if size:
        raw[:size] = np.frombuffer(wide.buffers()[2], np.uint8)[offsets[0] : offsets[-1]]
    starts = offsets - offsets[0]
    return raw, starts[:-1].copy(), np.diff(starts)


@dataclass(slots=True)
class _Envelope:
    """Where the parts of request records are, by row; filled for the rows that a reader has accepted."""

    canonical_at: Array
    canonical_bytes: Array
    public_key_at: Array
    signature_at: Array


@dataclass(slots=True)
class _Decoding:
    raw: Array
    first_offset: int
    value_at: Array
    value_bytes: Array
    kind: Array = field(init=False)
    activation: Array = field(init=False)
    sequence: Array = field(init=False)
    stamp_us: Array = field(init=False)
    parts: _Envelope = field(init=False)
    barriers: list[tuple[int, BarrierRecord]] = field(default_factory=list)

    def __post_init__(self) -> None:
        count = len(self.value_at)
        self.kind = np.zeros(count, np.uint8)
        self.activation = np.zeros(count, "S16")
        self.sequence = np.full(count, -1, np.int64)
        self.stamp_us = np.zeros(count, np.int64)
        self.parts = _Envelope(*[np.zeros(count, np.int64) for _ in range(4)])

    def columns(self) -> Columns:
        usual = self._usual_records()
        for row in np.flatnonzero(~usual):
            self._decode_one(int(row))
        rows = np.flatnonzero(self.kind == REQUEST)
        rows, (inputs_n, references_n, from_us, until_us) = self._canonical(rows)
        parts = self.parts
        return Columns(
            self.raw,
            self.first_offset,
            self.value_at,
            self.value_bytes,
            self.kind,
            self.activation,
            self.sequence,
            self.stamp_us,
            self.barriers,
            rows,
            parts.canonical_at[rows],
            parts.canonical_bytes[rows],
            inputs_n,
            references_n,
            from_us,
            until_us,
            parts.public_key_at[rows],
            parts.signature_at[rows],
        )

    def _usual_records(self) -> Array:
        """Take in the request records of the usual shape: one party acts, all texts are printable ASCII."""
        walk = _Walk(self.raw, self.value_at)
        walk.expect(walk.words(0) >> np.uint64(24) == _FORMAT_1_HEAD, 5)
        activation_at = walk.skip(16)
        sequence, stamp_us = walk.uint(), walk.uint()
        walk.expect(walk.bytes() == 0x97, 1)
        canonical_at, canonical_bytes = walk.binary()
        walk.expect(walk.pairs() == 0xC420, 2)
        public_key_at = walk.skip(32)
        walk.expect(walk.pairs() == 0xC440, 2)
        signature_at = walk.skip(64)
        walk.text(ID_MAX_BYTES)
        walk.text(ID_MAX_BYTES)
        walk.expect(walk.bytes() == 0x91, 1)
        walk.text(PARTY_MAX_BYTES)
        walk.text(ID_MAX_BYTES)
        usual: Array = walk.fits & (walk.at == self.value_at + self.value_bytes)
        self.kind[usual] = REQUEST
        self.activation[usual] = gather(self.raw, activation_at[usual], "S16")
        self.sequence[usual] = sequence[usual]
        self.stamp_us[usual] = stamp_us[usual]
        parts = self.parts
        parts.canonical_at, parts.canonical_bytes = canonical_at, canonical_bytes
        parts.public_key_at, parts.signature_at = public_key_at, signature_at
        return usual

    def _decode_one(self, row: int) -> None:
        """The notary's own decoder."""
        at = int(self.value_at[row])
        value = self.raw[at : at + int(self.value_bytes[row])].tobytes()
        try:
            record = decode_record(value, FORMAT)
        except Undecodable:
            return
        if isinstance(record, BarrierRecord):
            self.kind[row] = BARRIER
            self.barriers.append((self.first_offset + row, record))
            return
        self.kind[row] = SETTLEMENT
        self.activation[row], self.sequence[row] = record.activation_id, record.sequence
        if isinstance(record, RequestRecord):
            submission, parts = record.submission, self.parts
            self.kind[row], self.stamp_us[row] = REQUEST, record.stamp_us
            parts.canonical_at[row] = at + value.index(submission.request)  # they are in there verbatim
            parts.canonical_bytes[row] = len(submission.request)
            parts.public_key_at[row] = at + value.index(submission.public_key)
            parts.signature_at[row] = at + value.index(submission.signature)

    def _canonical(self, rows: Array) -> tuple[Array, list[Array]]:
        """Check the canonical bytes; returns the rows that pass, and counts and window of each."""
        at, size = self.parts.canonical_at[rows], self.parts.canonical_bytes[rows]
        found = _Canonical(self.raw, at, size)
        fits = found.check()
        for i in np.flatnonzero(~fits):
            start = int(at[i])
            try:
                decode_request(self.raw[start : start + int(size[i])].tobytes())
                fits[i] = True
            except BadRequest:
                self.kind[rows[i]], self.stamp_us[rows[i]] = BAD_REQUEST, 0
        columns = (found.inputs_n, found.references_n, found.from_us, found.until_us)
        return rows[fits], [column[fits] for column in columns]


class _Walk:
    """Walks through all records of a slice at once: `at` is where each is, `fits` whether it has been usual so far."""

    def __init__(self, raw: Array, at: Array) -> None:
        self._raw = raw
        self._last = len(raw) - 512 - 8  # from here on there is padding only: a text may still be read there
        self.at = at.copy()
        self.fits = np.ones(len(at), np.bool_)

    def bytes(self) -> Array:
        return self._raw[self.at]

    def pairs(self) -> Array:
        return gather(self._raw, self.at, ">u2")

    def words(self, ahead: int) -> Array:
        return gather(self._raw, self.at + ahead, ">u8").astype(np.uint64)

    def expect(self, holds: Array, size: int | Array) -> None:
        """Go on behind the next `size` bytes, which are as they should be where `holds`."""
        self.fits &= holds
        self.skip(size)

    def skip(self, size: int | Array) -> Array:
        """Go on behind the next bytes; returns where they are."""
        before = self.at
        self.at = np.minimum(before + size, self._last)
        return before

    def uint(self) -> Array:
        """An integer from 0 to 2**63 - 1."""
        head = self.bytes()
        size = _UINT_SIZE[head]
        value = np.where(size > 1, _leading(self.words(1), size - 1), head)
        self.expect((size > 0) & (value >= 0), size)
        return value

    def binary(self) -> tuple[Array, Array]:
        """A byte string: where it is, and its size."""
        head_bytes = _BIN_HEAD[self.bytes()]
        size = _leading(self.words(1), head_bytes - 1)
        self.expect(head_bytes > 1, head_bytes)
        return self.skip(size), size

    def text(self, max_bytes: int) -> None:
        """A text of 1 to `max_bytes` printable ASCII characters."""
        head = self.bytes()
        head_bytes = _STR_HEAD[head]
        size = np.where(head_bytes > 1, _leading(self.words(1), head_bytes - 1), head & 0x1F)
        self.expect((head_bytes > 0) & (size > 0) & (size <= max_bytes), head_bytes)
        at = self.skip(size)
        self.fits &= printable(self._raw, at, np.where(self.fits, size, 0))


class _Canonical:
    """The layout of `replica.notary.canonical`, for many requests at once."""

    def __init__(self, raw: Array, at: Array, size: Array) -> None:
        self._raw, self._at, self._size = raw, at, size
        last = len(raw) - 8
        self.inputs_n = self._number(np.minimum(at + _COUNTS_AT, last), ">u2")
        self.references_n = self._number(np.minimum(at + _COUNTS_AT + 2, last), ">u2")
        window_at = np.minimum(at + _REFS_AT + STATE_REF_BYTES * (self.inputs_n + self.references_n), last - 19)
        self._flags = raw[window_at]
        self._from = self._number(window_at + 1, ">u8")
        self._until = self._number(window_at + 9, ">u8")
        self._party_bytes = self._number(window_at + _WINDOW_BYTES, ">u2")
        self._party_at = window_at + _WINDOW_BYTES + 2
        self.from_us = np.where(self._flags & 1, self._from, 0)
        self.until_us = np.where(self._flags & 2, self._until, np.iinfo(np.int64).max)

    def _number(self, at: Array, dtype: str) -> Array:
        return gather(self._raw, at, dtype).astype(np.int64)

    def check(self) -> Array:
        """Whether the bytes are canonical, for certain; most that are not certain are not."""
        states = self.inputs_n + self.references_n
        fits = (self._size >= _REFS_AT + _WINDOW_BYTES + 2) & (states < STATES_LIMIT)
        fits &= self._party_at + self._party_bytes == self._at + self._size
        fits &= (self._party_bytes > 0) & (self._party_bytes <= PARTY_MAX_BYTES)
        safe_at = np.where(fits, self._at, 0)
        fits &= gather(self._raw, safe_at, "S16") == REQUEST_TAG
        fits &= self._window_fits()
        fits &= printable(self._raw, np.where(fits, self._party_at, 0), np.where(fits, self._party_bytes, 0))
        return self._refs_fit(fits)

    def _window_fits(self) -> Array:
        has_from, has_until = self._flags & 1 != 0, self._flags & 2 != 0
        fits: Array = (self._flags <= 3) & (has_from | (self._from == 0)) & (has_until | (self._until == 0))
        fits &= (self._from >= 0) & (self._until >= 0)
        fits &= ~(has_from & has_until) | (self._from < self._until)
        return fits

    def _refs_fit(self, fits: Array) -> Array:
        """Inputs ascend, references ascend, and none is in both (told by a hash: equal ones are not certain)."""
        pick = np.flatnonzero(fits)
        refs_at = self._at[pick] + _REFS_AT
        mixed = (self.inputs_n[pick] > 0) & (self.references_n[pick] > 0)
        hashes = []
        for counts, starts in (
            (self.inputs_n[pick], refs_at),
            (self.references_n[pick], refs_at + STATE_REF_BYTES * self.inputs_n[pick]),
        ):
            owner, positions = spread(starts, counts, STATE_REF_BYTES)
            refs = gather(self._raw, positions, f"S{STATE_REF_BYTES}")
            out_of_order = (owner[1:] == owner[:-1]) & ~(refs[1:] > refs[:-1])
            fits[pick[owner[1:][out_of_order]]] = False
            both = mixed[owner]
            hashes.append((owner[both], self._hash(owner[both], positions[both])))
        owners, all_hashes = (np.concatenate(columns) for columns in zip(*hashes, strict=True))
        order = np.argsort(all_hashes)
        again = all_hashes[order][1:] == all_hashes[order][:-1]
        fits[pick[owners[order[1:][again]]]] = False
        return fits

    def _hash(self, owner: Array, positions: Array) -> Array:
        words = [gather(self._raw, positions + ahead, "=u8") for ahead in (0, 8, 16, 24, 28)]
        mixed = owner.astype(np.uint64)
        for word in words:
            mixed = (mixed ^ word) * np.uint64(0x9E3779B97F4A7C15)
            mixed ^= mixed >> np.uint64(29)
        return mixed


def printable(raw: Array, at: Array, size: Array) -> Array:
    """Whether the text of `size` bytes at each position is printable ASCII."""
    fits = np.ones(len(at), np.bool_)
    rest = np.flatnonzero(size > 0)
    position, left = at[rest], size[rest]
    high, low_bits = np.uint64(0x8080808080808080), np.uint64(0x2020202020202020)
    while len(rest):
        word = gather(raw, position, ">u8").astype(np.uint64)
        kept = np.minimum(left, 8)
        shift = (8 * (8 - kept)).astype(np.uint64)  # bytes behind the text are replaced by spaces
        word = (word >> shift << shift) | (low_bits & ~(~np.uint64(0) << shift))
        below = (word - low_bits) & ~word & high  # a byte below the space, borrows aside, which only doubt more
        above = ((word & ~high) + np.uint64(0x0101010101010101)) & high  # 0x7f
        fits[rest[(below | above | (word & high)) != 0]] = False
        more = left > 8
        rest, position, left = rest[more], position[more] + 8, left[more] - 8
    return fits


def _leading(words: Array, size: Array) -> Array:
    """The big-endian integer in the first `size` bytes of each word, 1 to 8; others come out as anything."""
    leading: Array = words >> (8 * (8 - np.clip(size, 1, 8))).astype(np.uint64)
    return leading.astype(np.int64)
