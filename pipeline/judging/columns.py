"""Decodes a slice of the log into columns: the results of `decode_record` and `signed_in`, but at once.

There are two ways to one result. Array operations recognise records of the usual shape, if every byte fits it. All
other records are decoded by the notary's own functions, one at a time. So the fast way may miss valid records, which
costs time, but never accepts one that the notary's functions would refuse.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256

import numpy as np
import pyarrow as pa

from pipeline.judging.cursor import PADDING, Array, Walk, gather, printable, spread
from replica.notary.canonical import CHANGE_TAG, CONTENT_AT, LEDGER_AT, REFS_AT, REQUEST_TAG, TX_ID_AT
from replica.notary.errors import BadRequest
from replica.notary.genesis import decode_genesis
from replica.notary.records import (
    ACTIVATION_ID_BYTES,
    BarrierRecord,
    RequestRecord,
    Undecodable,
    decode_record,
    format_named,
)
from replica.notary.requests import (
    DERIVED,
    ID_MAX_BYTES,
    LEDGER_ID_BYTES,
    PARTY_MAX_BYTES,
    STATE_REF_BYTES,
    STATES_LIMIT,
)
from replica.notary.terms import FOR_EVER_US, LEDGER_OFFSET, signed_in

UNDECODABLE, BARRIER, REQUEST, BAD_REQUEST, NOTE, GENESIS = range(6)
"""Kinds of record. BAD_REQUEST: a request record whose request is not canonical. NOTE: it counts without a verdict, as
signs of life do, too."""

ACTIVATION = f"S{ACTIVATION_ID_BYTES + 1}"
_BLOCK_RECORDS = 1 << 13  # of 600 bytes, say: what is known of them stays in a processor's caches
_USUAL_FORMAT = 2
_REQUEST_HEAD = 0x9D0102C410  # an array of 13, a request of format 2, an activation id
_WINDOW_BYTES, _END_BYTES = 17, 10
_SIGNED_MIN_BYTES = 3 + 3 + 1 + 3 + _END_BYTES  # what follows the party: two texts, a party that acts, the end


@dataclass(frozen=True, slots=True)
class Columns:
    """A slice of the log; arrays of one length, but those of requests, which have an element for each in `rows`.

    `activation` is the activation id and the record's format, one byte: a record counts only with both in force.
    `raw` holds all values, one after the other, and some padding; positions are into it. `stamp_us` is 0 and `sequence`
    -1 where a record has none.
    """

    raw: Array  # bytes
    first_offset: int
    value_at: Array
    value_bytes: Array
    kind: Array
    activation: Array  # S17
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
    deduplication_us: Array

    def __len__(self) -> int:
        return len(self.kind)

    def value(self, row: int) -> bytes:
        """A record's bytes."""
        at = int(self.value_at[row])
        return self.raw[at : at + int(self.value_bytes[row])].tobytes()

    def at(self, positions: Array, size: int) -> Array:
        """The `size` bytes at each position, as fixed byte strings."""
        return gather(self.raw, positions, f"V{size}")

    @property
    def ledger_id(self) -> bytes:
        """The ledger that the slice seems to be of: its genesis names it, or else its first request. Empty: it has
        neither."""
        if len(self) and self.kind[0] == GENESIS and (genesis := decode_genesis(self.value(0))) is not None:
            return genesis.ledger_id
        return bytes(self._ledgers(slice(1))[0]) if len(self.rows) else b""

    def of_others(self, ledger_id: bytes) -> Array:
        """The rows of requests for other ledgers."""
        if not len(self.rows):  # so `ledger_id` may be empty, which nothing can be compared with
            return self.rows
        found: Array = self.rows[self._ledgers(slice(None)) != np.void(ledger_id)]
        return found

    def _ledgers(self, requests: slice) -> Array:
        return self.at(self.canonical_at[requests] + LEDGER_AT, LEDGER_ID_BYTES)

    def tx_ids(self) -> Array:
        """Transaction id of each request, V32."""
        return self.at(self.canonical_at + TX_ID_AT, 32)

    def content_at(self) -> tuple[Array, Array]:
        """Start and end of what each request's content digest covers, besides its tag."""
        states = self.inputs_n + self.references_n
        start = self.canonical_at + CONTENT_AT
        return start, start + (REFS_AT - CONTENT_AT) + STATE_REF_BYTES * states + _WINDOW_BYTES

    def parties(self, pick: Array) -> tuple[Array, Array]:
        """Start and size of the name of each party, of the requests picked. The command follows it."""
        at = self.content_at()[1][pick]
        return at + 2, gather(self.raw, at, ">u2").astype(np.int64)

    def commands(self, pick: Array) -> Iterator[tuple[bytes, str]]:
        """Change id and command id of each request picked, from what follows the party in its canonical bytes."""
        data = self.raw.tobytes()
        party_at, party_bytes = self.parties(pick)
        user_at = party_at + party_bytes
        command_at = user_at + 2 + gather(self.raw, user_at, ">u2").astype(np.int64)
        actors_at = command_at + 2 + gather(self.raw, command_at, ">u2").astype(np.int64)
        end = self.canonical_at[pick] + self.canonical_bytes[pick] - _END_BYTES
        edges = (user_at.tolist(), command_at.tolist(), actors_at.tolist(), end.tolist())
        for user, command, actors, last in zip(*edges, strict=True):
            named = CHANGE_TAG + data[user:actors] + data[actors + 1 : last]
            yield sha256(named).digest(), data[command + 2 : actors].decode()

    def named_offsets(self, pick: Array) -> Array:
        """The ledger offset after which acceptances count, of each request picked; -1: it named none."""
        at = self.canonical_at[pick] + self.canonical_bytes[pick] - _END_BYTES
        named: Array = np.where(self.raw[at] == LEDGER_OFFSET, gather(self.raw, at + 1, ">u8").astype(np.int64), -1)
        return named

    def refs(self, pick: Array, *, references: bool = False) -> tuple[Array, Array]:
        """Inputs (or references) of the requests picked: for each state, which of the picked, and its 36 bytes."""
        counts = (self.references_n if references else self.inputs_n)[pick]
        starts = self.canonical_at[pick] + REFS_AT
        if references:
            starts = starts + STATE_REF_BYTES * self.inputs_n[pick]
        owner, positions = spread(starts, counts, STATE_REF_BYTES)
        return owner, self.at(positions, STATE_REF_BYTES)


_DECODED = (
    "kind", "activation", "sequence", "stamp_us", "rows", "canonical_at", "canonical_bytes", "inputs_n", "references_n",
    "from_us", "until_us", "public_key_at", "signature_at", "deduplication_us",
)  # fmt: skip


def decode(first_offset: int, values: pa.Array) -> Columns:
    """Columns of records with dense offsets from `first_offset`; a null value is read as b'', as a replica does."""
    raw, value_at, value_bytes = _buffer(values)
    blocks = [
        _Decoding(raw, start, value_at[start : start + _BLOCK_RECORDS], value_bytes[start : start + _BLOCK_RECORDS])
        for start in range(0, max(1, len(value_at)), _BLOCK_RECORDS)
    ]
    for block in blocks:
        block.run()

    def joined(name: str) -> Array:
        found: Array = np.concatenate([getattr(block, name) for block in blocks])
        return found

    barriers = [(first_offset + row, record) for block in blocks for row, record in block.barriers]
    arrays = {name: joined(name) for name in _DECODED}
    if first_offset == 0 and len(values) and decode_genesis(values[0].as_py() or b"") is not None:
        arrays["kind"][0] = GENESIS
    return Columns(raw, first_offset, value_at, value_bytes, barriers=barriers, **arrays)


def _buffer(values: pa.Array) -> tuple[Array, Array, Array]:
    """All values one after the other, with padding after, and where each begins and how long it is."""
    if values.null_count:
        values = values.fill_null(b"")
    wide = values.cast(pa.large_binary())
    offsets = np.frombuffer(wide.buffers()[1], np.int64)[wide.offset : wide.offset + len(wide) + 1]
    size = int(offsets[-1] - offsets[0])
    raw = np.empty(size + PADDING, np.uint8)
    raw[size:] = 0
    if size:
        raw[:size] = np.frombuffer(wide.buffers()[2], np.uint8)[offsets[0] : offsets[-1]]
    starts = offsets - offsets[0]
    return raw, starts[:-1].copy(), np.diff(starts)


@dataclass(slots=True)
class _Decoding:
    """Some records of a slice, few enough for a processor's caches; rows count from the slice's first record."""

    raw: Array
    first_row: int
    value_at: Array
    value_bytes: Array
    kind: Array = field(init=False)
    activation: Array = field(init=False)
    sequence: Array = field(init=False)
    stamp_us: Array = field(init=False)
    barriers: list[tuple[int, BarrierRecord]] = field(default_factory=list)
    # of each record at first, in the end of those in `rows`
    rows: Array = field(init=False)
    canonical_at: Array = field(init=False)
    canonical_bytes: Array = field(init=False)
    public_key_at: Array = field(init=False)
    signature_at: Array = field(init=False)
    deduplication_us: Array = field(init=False)
    inputs_n: Array = field(init=False)
    references_n: Array = field(init=False)
    from_us: Array = field(init=False)
    until_us: Array = field(init=False)

    def __post_init__(self) -> None:
        count = len(self.value_at)
        self.kind = np.zeros(count, np.uint8)
        self.activation = np.zeros(count, ACTIVATION)
        self.sequence = np.full(count, -1, np.int64)
        self.stamp_us = np.zeros(count, np.int64)

    def run(self) -> None:
        """Fill the columns."""
        usual = self._usual_records()
        for row in np.flatnonzero(~usual).tolist():
            self._decode_one(row)
        self._requests()

    def _usual_records(self) -> Array:
        """Take in the request records of the usual shape: not shown in parts, the submission id is printable ASCII."""
        walk = Walk(self.raw, self.value_at)
        head = walk.words(0) >> np.uint64(24)
        walk.expect(head == _REQUEST_HEAD, 5)
        activation_at = walk.skip(16)
        sequence, stamp_us = walk.uint(), walk.uint()
        canonical_at, canonical_bytes = walk.binary()
        self.deduplication_us = walk.uint()
        walk.text(ID_MAX_BYTES)
        walk.expect(walk.pairs() == 0xC420, 2)
        public_key_at = walk.skip(32)
        walk.expect(walk.pairs() == 0xC440, 2)
        signature_at = walk.skip(64)
        walk.expect(walk.pairs() == 0xC420, 2)
        walk.expect(walk.words(0) | walk.words(8) | walk.words(16) | walk.words(24) == 0, 32)
        walk.expect(walk.pairs() == 0x9090, 2)
        usual: Array = walk.fits & (walk.at == self.value_at + self.value_bytes)
        self.kind[usual] = REQUEST
        packed = np.empty((int(usual.sum()), ACTIVATION_ID_BYTES + 1), np.uint8)
        packed[:, :-1] = gather(self.raw, activation_at[usual], "V16").view(np.uint8).reshape(-1, ACTIVATION_ID_BYTES)
        packed[:, -1] = _USUAL_FORMAT
        self.activation[usual] = packed.view(ACTIVATION).ravel()
        self.sequence[usual] = sequence[usual]
        self.stamp_us[usual] = stamp_us[usual]
        self.canonical_at, self.canonical_bytes = canonical_at, canonical_bytes
        self.public_key_at, self.signature_at = public_key_at, signature_at
        return usual

    def _decode_one(self, row: int) -> None:
        """The notary's own decoder."""
        at = int(self.value_at[row])
        value = self.raw[at : at + int(self.value_bytes[row])].tobytes()
        try:
            record = decode_record(value, format_named(value))
        except Undecodable:
            return
        if isinstance(record, BarrierRecord):
            self.kind[row] = BARRIER
            self.barriers.append((self.first_row + row, record))
            return
        self.kind[row] = NOTE
        self.activation[row] = record.activation_id + bytes([record.format])
        self.sequence[row] = record.sequence
        if isinstance(record, RequestRecord):
            self.kind[row], self.stamp_us[row] = REQUEST, record.stamp_us
            self.canonical_at[row] = at + value.index(record.request)  # they are in there verbatim
            self.canonical_bytes[row] = len(record.request)
            self.public_key_at[row] = at + value.index(record.public_key)
            self.signature_at[row] = at + value.index(record.signature)
            self.deduplication_us[row] = record.deduplication_us

    def _requests(self) -> None:
        """Check the canonical bytes of request records, and keep of each column what passes."""
        rows = np.flatnonzero(self.kind == REQUEST)
        at, size = self.canonical_at[rows], self.canonical_bytes[rows]
        found = _Canonical(self.raw, at, size)
        fits = found.check(self.deduplication_us[rows])
        for i in np.flatnonzero(~fits).tolist():
            start = int(self.value_at[rows[i]])
            value = self.raw[start : start + int(self.value_bytes[rows[i]])].tobytes()
            try:
                record = decode_record(value, format_named(value))
                assert isinstance(record, RequestRecord)
                signed_in(record)
                fits[i] = True
            except BadRequest:
                self.kind[rows[i]], self.stamp_us[rows[i]] = BAD_REQUEST, 0
        for name in ("inputs_n", "references_n", "from_us", "until_us"):
            setattr(self, name, getattr(found, name)[fits])
        rows = rows[fits]
        for name in (
            "canonical_at",
            "canonical_bytes",
            "public_key_at",
            "signature_at",
            "deduplication_us",
        ):
            setattr(self, name, getattr(self, name)[rows])
        self.rows = self.first_row + rows


class _Canonical:
    """The layout of `replica.notary.terms`, for many requests at once."""

    def __init__(self, raw: Array, at: Array, size: Array) -> None:
        self._raw, self._at, self._size = raw, at, size
        last = len(raw) - 8
        self.inputs_n = self._number(np.minimum(at + CONTENT_AT, last), ">u2")
        self.references_n = self._number(np.minimum(at + CONTENT_AT + 2, last), ">u2")
        window_at = np.minimum(at + REFS_AT + STATE_REF_BYTES * (self.inputs_n + self.references_n), last - 19)
        self._owners_n = self._number(np.minimum(at + CONTENT_AT + 4, last), ">u2")
        self._flags = raw[window_at]
        self._from = self._number(window_at + 1, ">u8")
        self._until = self._number(window_at + 9, ">u8")
        self._party_bytes = self._number(window_at + _WINDOW_BYTES, ">u2")
        self._party_at = window_at + _WINDOW_BYTES + 2
        self.from_us = np.where(self._flags & 1, self._from, 0)
        self.until_us = np.where(self._flags & 2, self._until, np.iinfo(np.int64).max)

    def _number(self, at: Array, dtype: str) -> Array:
        return gather(self._raw, at, dtype).astype(np.int64)

    def check(self, deduplication_us: Array) -> Array:
        """Whether the bytes are canonical and were signed for the record's period, for certain; most that are not
        certain are not. Certain are those of one party that acts, with texts of printable ASCII."""
        states = self.inputs_n + self.references_n
        fits = (self._size >= REFS_AT + _WINDOW_BYTES + 2 + _SIGNED_MIN_BYTES) & (states < STATES_LIMIT)
        fits &= self._party_at + self._party_bytes < self._at + self._size
        fits &= (self._party_bytes > 0) & (self._party_bytes <= PARTY_MAX_BYTES)
        safe_at = np.where(fits, self._at, 0)
        fits &= gather(self._raw, safe_at, "S16") == REQUEST_TAG
        fits &= self._number(safe_at + CONTENT_AT - len(DERIVED), ">u8") != int.from_bytes(DERIVED, "big")
        fits &= self._owners_n == 0
        fits &= self._window_fits()
        fits &= printable(self._raw, np.where(fits, self._party_at, 0), np.where(fits, self._party_bytes, 0))
        fits &= self._terms_fit(fits, deduplication_us)
        return self._refs_fit(fits)

    def _terms_fit(self, fits: Array, deduplication_us: Array) -> Array:
        """Whether a user, a command, one party that acts and the record's period follow the party, and nothing else."""
        last = len(self._raw) - PADDING
        at = np.minimum(self._party_at + self._party_bytes, last)
        for size_max in (ID_MAX_BYTES, ID_MAX_BYTES, PARTY_MAX_BYTES):
            if size_max == PARTY_MAX_BYTES:
                fits = fits & (self._raw[at] == 1)
                at = at + 1
            size = self._number(at, ">u2")
            fits = fits & (size > 0) & (size <= size_max)
            fits &= printable(self._raw, at + 2, np.where(fits, size, 0))
            at = np.minimum(at + 2 + size, last)
        fits &= (at + _END_BYTES == self._at + self._size) & (self._raw[at + 9] == 0)
        kind, value = self._raw[at], self._number(at + 1, ">u8")
        of_period = value == np.where(kind == 0, 0, deduplication_us)
        of_offset = (value >= 0) & (deduplication_us == FOR_EVER_US)
        signed: Array = fits & np.where(kind == LEDGER_OFFSET, of_offset, of_period & (kind < LEDGER_OFFSET))
        return signed

    def _window_fits(self) -> Array:
        has_from, has_until = self._flags & 1 != 0, self._flags & 2 != 0
        fits: Array = (self._flags <= 3) & (has_from | (self._from == 0)) & (has_until | (self._until == 0))
        fits &= (self._from >= 0) & (self._until >= 0)
        fits &= ~(has_from & has_until) | (self._from < self._until)
        return fits

    def _refs_fit(self, fits: Array) -> Array:
        """Whether inputs ascend, references ascend, and none is in both (by a hash: equal hashes are no proof)."""
        pick = np.flatnonzero(fits)
        refs_at = self._at[pick] + REFS_AT
        mixed = (self.inputs_n[pick] > 0) & (self.references_n[pick] > 0)
        hashes = []
        for counts, starts in (
            (self.inputs_n[pick], refs_at),
            (self.references_n[pick], refs_at + STATE_REF_BYTES * self.inputs_n[pick]),
        ):
            owner, positions = spread(starts, counts, STATE_REF_BYTES)
            fits[pick[owner[1:][self._out_of_order(owner, positions)]]] = False
            both = mixed[owner]
            hashes.append((owner[both], self._hash(owner[both], positions[both])))
        owners, all_hashes = (np.concatenate(columns) for columns in zip(*hashes, strict=True))
        order = np.argsort(all_hashes)
        again = all_hashes[order][1:] == all_hashes[order][:-1]
        fits[pick[owners[order[1:][again]]]] = False
        return fits

    def _out_of_order(self, owner: Array, positions: Array) -> Array:
        """For each state but the first, whether it does not follow the one before in the same request."""
        leading = gather(self._raw, positions, ">u8").astype(np.uint64)
        out: Array = (owner[1:] == owner[:-1]) & (leading[1:] <= leading[:-1])
        equal = np.flatnonzero(out & (leading[1:] == leading[:-1]))
        refs = gather(self._raw, positions[np.concatenate((equal, equal + 1))], f"S{STATE_REF_BYTES}")
        out[equal] = refs[len(equal) :] <= refs[: len(equal)]
        return out

    def _hash(self, owner: Array, positions: Array) -> Array:
        words = [gather(self._raw, positions + ahead, "=u8") for ahead in (0, 8, 16, 24, 28)]
        mixed = owner.astype(np.uint64)
        for word in words:
            mixed = (mixed ^ word) * np.uint64(0x9E3779B97F4A7C15)
            mixed ^= mixed >> np.uint64(29)
        return mixed
