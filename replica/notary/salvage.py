"""The tail salvage: what is still known of records that the request log has lost. It stays decided for ever.

A log has a *lost record* at each offset whose record was lost, so that no offset is used twice: whether it was restored
to a new topic, goes on from a copy, or was cut by a power failure and goes on itself. A lost record names a salvage by
its digest; that file has the entries that the record at its offset added to an index. For the void rule
a lost record is no record of any format. A reader that keeps an index must have the file to read past it. So no reader
passes a lost range without the same entries, whether its log is the topic, the archive or a second site.
docs/decisions/0012 has the argument, docs/formats.md the layouts.
"""

from __future__ import annotations

import re
import struct
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from itertools import groupby
from typing import NamedTuple

import msgspec

from replica.notary.errors import FormatUnknown, IndexMismatch, SalvageDamaged, SalvageMissing
from replica.notary.position import BEGIN, Position, decode_position
from replica.notary.records import record_digest
from replica.notary.requests import SIGNATURE_BYTES, TIME_MAX_US
from replica.notary.signatures import signature_holds

SALVAGE_VERSION = 1
SALVAGE_TAG = b"notary/salvage/1"
LOST_TAG = b"notary/lost/2"
SALVAGES_NAME = "salvages"  # folder of the files that were imported: in a replica's folder, and in the archive's
# First bytes of keys, as in an index; not imported, because the checker shares no code with the rules.
STATE_KEY, TX_KEY, COMMAND_KEY, OFFICERS_KEY, PARTY_KEY = b"s", b"t", b"c", b"o", b"p"
OF_STATES, OF_COMMANDS, OF_PARTIES = STATE_KEY + TX_KEY, COMMAND_KEY, OFFICERS_KEY + PARTY_KEY
"""Kinds of entry: of states and transactions, of commands, of officers and registrations."""

ENTRIES_MAX = 5_000_000  # a file of 500 MB, which every replica holds in memory; 2 GB while it is made

_LENGTH_BYTES = _OFFSET_BYTES = 8
_DIGEST_BYTES = 32
_LOST = struct.Struct(f">{len(LOST_TAG)}sQQQ{_DIGEST_BYTES}s")
_LEDGER_OFFSET_MAX = 2**62
_KEY_LENGTH, _VALUE_LENGTH = struct.Struct(">H"), struct.Struct(">I")
_HASH_KEY, _OFFSET_KEY = 33, 41  # bytes of a key: kind and hash; the same and a log offset
_SIZES: dict[bytes, tuple[frozenset[int], range]] = {
    STATE_KEY: (frozenset({37}), range(40, 41)),
    TX_KEY: (frozenset({_HASH_KEY}), range(40, 41)),
    COMMAND_KEY: (frozenset({_HASH_KEY, _OFFSET_KEY}), range(88, 89)),
    OFFICERS_KEY: (frozenset({9}), range(16, 4_097)),
    PARTY_KEY: (frozenset({_OFFSET_KEY}), range(64, 65)),
}
"""Of each kind of entry: how many bytes its key and its value have. Every value ends in its log offset."""


class SalvageHeader(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The header of a salvage.

    archive_id: of the archive, copy or log that has what is left. position: the bytes of a reader's position after its
    last record, in the log that was lost. last: the last lost offset. applied, published, mark: how far the indexes,
    the completions and the marks cover the lost range. exposed: offsets beyond all of these that answers may have
    named; they are lost as well. ledger_end: the last ledger offset of the completions. judged_us: the newest time
    judged that anybody knows. sources: each index with its offset. entries: rows of the file. states_unknown:
    transactions that the database has as notarised, and whose states are in no index. at_us: microseconds UTC.
    public_key: the signer's.
    """

    version: int
    archive_id: str
    topic_id: str
    position: bytes
    last: int
    applied: int
    published: int
    mark: int
    exposed: int
    ledger_end: int
    judged_us: int
    sources: tuple[tuple[str, int], ...]
    entries: int
    states_unknown: int
    at_us: int
    public_key: bytes

    @property
    def known(self) -> int:
        """The highest offset that a source, or what is left of the log, knows to have been in the log."""
        return max(decode_position(self.position).offset, self.applied, self.published, self.mark)

    @property
    def accepted_loss(self) -> int:
        """The number that an operator must name to accept what stays lost."""
        return self.states_unknown


class LostEntry(NamedTuple):
    """An entry that a lost record added to the index."""

    offset: int
    key: bytes
    value: bytes


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(SalvageHeader)


class Salvage:
    """A decoded salvage: whole, canonical, and signed by the key that its header names."""

    def __init__(self, header: SalvageHeader, rows: bytes, digest: bytes) -> None:
        self.header = header
        self.digest = digest
        self._rows = rows
        self._starts = _starts_in(rows, header.entries)  # of each entry in `rows`, and the end of the last one

    @cached_property
    def base(self) -> Position:
        """The position after the last record that is left, in the log that was lost."""
        return decode_position(self.header.position)

    @property
    def first(self) -> int:
        """The first lost offset."""
        return self.base.offset + 1

    @property
    def last(self) -> int:
        """The last lost offset."""
        return self.header.last

    def entries(self) -> Iterator[LostEntry]:
        """All entries, by offset and key."""
        return map(self._entry, range(self.header.entries))

    def entries_between(self, first: int, last: int) -> Iterator[LostEntry]:
        """The entries of the records that were lost at the offsets from `first` to `last`, by offset and key."""
        numbers = range(self.header.entries)
        start, end = (bisect_left(numbers, offset, key=self._offset) for offset in (first, last + 1))
        return map(self._entry, numbers[start:end])

    def entries_at(self, offset: int) -> dict[bytes, bytes]:
        """The entries of the record that was lost at this offset: key and value."""
        return {entry.key: entry.value for entry in self.entries_between(offset, offset)}

    def lost_record(self, offset: int) -> bytes:
        """The bytes that the restored topic has at a lost offset."""
        return lost_record(offset, self.header.ledger_end, self.header.judged_us, self.digest)

    def position_at(self, offset: int, topic_id: str) -> Position:
        """A reader's position after a lost record of the restored topic: nothing in the range was in force."""
        if not self.first <= offset <= self.last:
            raise IndexMismatch(f"offset {offset} is not one of the lost {self.first} to {self.last}")
        return msgspec.structs.replace(
            self.base,
            topic_id=topic_id,
            offset=offset,
            digest=record_digest(self.lost_record(offset)),
            ledger_offset=max(self.base.ledger_offset, self.header.ledger_end),
            stamp_us=max(self.base.stamp_us, self.header.judged_us),
        )

    def _entry(self, number: int) -> LostEntry:
        start, end = self._starts[number], self._starts[number + 1]
        key_at = start + _KEY_LENGTH.size
        key_end = key_at + _KEY_LENGTH.unpack_from(self._rows, start)[0]
        return LostEntry(
            self._offset(number), self._rows[key_at:key_end], self._rows[key_end + _VALUE_LENGTH.size : end]
        )

    def _offset(self, number: int) -> int:
        end = self._starts[number + 1]
        return int.from_bytes(self._rows[end - _OFFSET_BYTES : end], "big")


def encode_salvage(header: SalvageHeader, entries: Iterable[LostEntry], sign: Callable[[bytes], bytes]) -> bytes:
    """The file of a salvage. `entries` may be in any order; their number is put into the header.

    Raises SalvageDamaged when the entries cannot be those of lost records.
    """
    ordered = sorted(entries)
    for entry in ordered:
        _check_sizes(entry)
    if len({entry.key for entry in ordered}) != len(ordered):
        raise SalvageDamaged("a state, a transaction id or another key is named twice")
    encoded = _encoder.encode(msgspec.structs.replace(header, entries=len(ordered)))
    body = b"".join([SALVAGE_TAG, len(encoded).to_bytes(_LENGTH_BYTES, "big"), encoded, *map(_row_of, ordered)])
    raw = body + sign(body)
    decode_salvage(raw)
    return raw


def decode_salvage(raw: bytes, public_key: bytes | None = None) -> Salvage:
    """A salvage from its file. Raises SalvageDamaged unless it is whole, canonical and signed.

    `public_key`: the required signer; None: the one in the header, for callers that identify the file by its digest.
    """
    body, signature = raw[:-SIGNATURE_BYTES], raw[-SIGNATURE_BYTES:]
    header_at = len(SALVAGE_TAG) + _LENGTH_BYTES
    if not body.startswith(SALVAGE_TAG) or len(body) < header_at:
        raise SalvageDamaged("it does not begin as a salvage of version 1 does")
    rows_at = header_at + int.from_bytes(body[len(SALVAGE_TAG) : header_at], "big")
    header, rows = _header(body[header_at:rows_at]), body[rows_at:]
    if not signature_holds(public_key or header.public_key, body, signature):
        raise SalvageDamaged("it is not signed by the operator's key, or was changed since")
    if not 0 <= header.entries <= ENTRIES_MAX:
        raise SalvageDamaged(f"its header counts {header.entries} entries; they are at most {ENTRIES_MAX}")
    salvage = Salvage(header, rows, sha256(raw).digest())
    _check_range(salvage)
    _check_entries(salvage)
    return salvage


def _header(raw: bytes) -> SalvageHeader:
    try:
        header = _decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SalvageDamaged(f"its header cannot be read: {error}") from None
    if header.version != SALVAGE_VERSION or _encoder.encode(header) != raw:
        raise SalvageDamaged(f"its header is not the canonical one of version {SALVAGE_VERSION}")
    return header


def _check_range(salvage: Salvage) -> None:
    header = salvage.header
    try:
        base = salvage.base
    except FormatUnknown as error:
        raise SalvageDamaged(error.detail) from None
    if base.topic_id != header.topic_id or not BEGIN <= base.offset < header.last < 1 << 63:
        raise SalvageDamaged(f"offsets {base.offset + 1} to {header.last} of topic id {header.topic_id} are no range")
    is_count = header.exposed >= 0 and 0 <= header.ledger_end <= _LEDGER_OFFSET_MAX and header.states_unknown >= 0
    if header.mark < BEGIN or not is_count or not 0 <= header.judged_us <= TIME_MAX_US:
        raise SalvageDamaged("its header counts what cannot be")
    if header.known + header.exposed != header.last:
        raise SalvageDamaged(f"it ends at {header.last}, known was up to {header.known}, exposed {header.exposed}")


def _check_entries(salvage: Salvage) -> None:
    """Check that entries ascend, lie in the range, and at each offset are those of one record."""
    before: LostEntry | None = None
    for offset, group in groupby(salvage.entries(), key=_offset_of):
        entries = []
        for entry in group:
            if before is not None and entry <= before:
                raise SalvageDamaged(f"its entries are not in order at offset {offset}")
            before = entry
            entries.append(entry)
        if not salvage.first <= offset <= salvage.last:
            raise SalvageDamaged(f"it has an entry at offset {offset}, which was not lost")
        check_record(offset, entries)


def check_record(offset: int, entries: Sequence[LostEntry]) -> None:
    """Raises SalvageDamaged unless these are the entries of one record: of a notarised transaction and the acceptance
    of its command, of an acceptance alone, where the transaction was notarised before, or of a note."""
    for entry in entries:
        _check_sizes(entry)
    tx = [(entry.key[1:], entry.value[:_DIGEST_BYTES]) for entry in entries if entry.key[:1] == TX_KEY]
    consumed_by = {entry.value[:_DIGEST_BYTES] for entry in entries if entry.key[:1] == STATE_KEY}
    accepted = [(entry.value[:32], entry.value[32:64]) for entry in entries if entry.key[:1] == COMMAND_KEY]
    of_notes = [entry for entry in entries if entry.key[:1] in OF_PARTIES]
    is_one = len(tx) <= 1 and len(accepted) <= 1 and consumed_by <= {tx_id for tx_id, _ in tx}
    if not is_one or (tx and accepted and tx != accepted) or (of_notes and (tx or accepted)):
        raise SalvageDamaged(f"what was recorded at offset {offset} is not one record's")


def transaction_in(entries: Mapping[bytes, bytes]) -> tuple[bytes, bytes, list[bytes]]:
    """Of the entries of a record that notarised one: transaction id, content digest, the states that it consumed."""
    ((tx_id, digest),) = [(key[1:], value[:_DIGEST_BYTES]) for key, value in entries.items() if key[:1] == TX_KEY]
    return tx_id, digest, [key[1:] for key in entries if key[:1] == STATE_KEY]


def of_kinds(entries: Mapping[bytes, bytes], kinds: bytes) -> dict[bytes, bytes]:
    """Those of some entries that are of these kinds."""
    return {key: value for key, value in entries.items() if key[:1] in kinds}


def _offset_of(entry: LostEntry) -> int:
    return entry.offset


def _check_sizes(entry: LostEntry) -> None:
    at = entry.offset.to_bytes(_OFFSET_BYTES, "big")
    keys, values = _SIZES.get(entry.key[:1], (frozenset(), range(0)))
    ends_well = entry.value[-_OFFSET_BYTES:] == at and (
        len(entry.key) not in {9, _OFFSET_KEY} or entry.key[-_OFFSET_BYTES:] == at
    )
    if len(entry.key) not in keys or len(entry.value) not in values or not ends_well:
        raise SalvageDamaged(f"key {entry.key.hex()} with value {entry.value.hex()} is no entry of an index")


def _row_of(entry: LostEntry) -> bytes:
    return b"".join((_KEY_LENGTH.pack(len(entry.key)), entry.key, _VALUE_LENGTH.pack(len(entry.value)), entry.value))


def _starts_in(rows: bytes, count: int) -> array[int]:
    """Where each of so many entries starts, and where the last one ends. Raises SalvageDamaged unless they are all."""
    starts, at = array("Q", [0]), 0
    try:
        for _ in range(count):
            at += _KEY_LENGTH.size + _KEY_LENGTH.unpack_from(rows, at)[0]
            at += _VALUE_LENGTH.size + _VALUE_LENGTH.unpack_from(rows, at)[0]
            starts.append(at)
    except struct.error:
        raise SalvageDamaged(f"it ends before the {count} entries that its header counts") from None
    if at != len(rows):
        raise SalvageDamaged(f"it has {len(rows)} bytes of entries, and the header counts {count} entries of {at}")
    return starts


# ---- what a reader of the log does with it ----


class Lost(NamedTuple):
    """What a lost record names: the newest ledger offset and time judged of the lost records, and the salvage."""

    ledger_offset: int
    judged_us: int
    digest: bytes


def lost_record(offset: int, ledger_offset: int, judged_us: int, digest: bytes) -> bytes:
    """The bytes at a lost offset: no record of any format, and different at each offset."""
    return _LOST.pack(LOST_TAG, offset, ledger_offset, judged_us, digest)


def lost_named(offset: int, value: bytes) -> Lost | None:
    """What a lost record names; None for any other bytes. Raises IndexMismatch when the record was made for another
    offset, is cut short, or names what no position holds: a reader that skipped it would lose its entries."""
    if not value.startswith(LOST_TAG):
        return None
    if len(value) == _LOST.size:
        _, at, ledger_offset, judged_us, digest = _LOST.unpack(value)
        if at == offset and ledger_offset <= _LEDGER_OFFSET_MAX and judged_us <= TIME_MAX_US:
            return Lost(ledger_offset, judged_us, digest)
    raise IndexMismatch(f"the lost record at offset {offset} is not one that was made for it")


def salvage_named(offset: int, value: bytes) -> bytes | None:
    """The digest of the salvage that a lost record names. As `lost_named`."""
    lost = lost_named(offset, value)
    return None if lost is None else lost.digest


class Salvages:
    """The salvages that this reader has, by digest."""

    def __init__(self, held: Iterable[Salvage] = ()) -> None:
        self.held: Mapping[bytes, Salvage] = {salvage.digest: salvage for salvage in held}

    def entries_of(self, records: Iterable[tuple[int, bytes]]) -> dict[bytes, bytes]:
        """The index entries of void records (offset, value): none, except for lost records.

        Raises SalvageMissing for a lost record whose salvage is not held, and IndexMismatch for one that is not its.
        """
        added: dict[bytes, bytes] = {}
        for offset, value in records:
            digest = salvage_named(offset, value)
            if digest is not None:
                added |= self.of(digest, offset, offset).entries_at(offset)
        return added

    def of(self, digest: bytes, first: int, last: int) -> Salvage:
        """The salvage that the lost records at these offsets name. Raises SalvageMissing and IndexMismatch."""
        salvage = self.held.get(digest)
        if salvage is None:
            raise SalvageMissing(f"the record at offset {first} was lost; what it did is in salvage {digest.hex()}")
        for offset in (first, last):
            if not salvage.first <= offset <= salvage.last:
                raise IndexMismatch(f"offset {offset} is not one that salvage {digest.hex()} is of")
        return salvage


NO_SALVAGES = Salvages()


# ---- how the database names the log ----

_JOINT = ":"  # before each digest; a log's id may contain it too, if what follows is no digest
_DIGESTS = re.compile(r"(?::[0-9a-f]{64})*\Z")
BOUND_MAX = 3  # the column has 255 bytes


def bound_name(bound: str | None, topic_id: str, digest: bytes | None = None) -> str:
    """The database's name for a log with lost records: its id, and the salvages that it needs.

    `bound`: the name before; its salvages are kept. A release without salvages finds another id than the topic's there,
    and refuses. Raises SalvageDamaged when there are more than fit.
    """
    digests = list(salvages_named(bound))
    if digest is not None and digest.hex() not in digests:
        digests.append(digest.hex())
    if len(digests) > BOUND_MAX:
        raise SalvageDamaged(f"a log can have {BOUND_MAX} lost ranges, this would be one more")
    return _JOINT.join([topic_id, *digests])


def bound_topic_id(bound: str | None) -> str | None:
    """The topic's id in the database's name for the log."""
    return None if bound is None else _split(bound)[0]


def salvages_named(bound: str | None) -> tuple[str, ...]:
    """Digests, in hexadecimal, of the salvages in the database's name for the log."""
    return () if bound is None else _split(bound)[1]


def _split(bound: str) -> tuple[str, tuple[str, ...]]:
    """The log's id and the digests after it."""
    found = _DIGESTS.search(bound)
    at = len(bound) if found is None else found.start()
    return bound[:at], tuple(bound[at:].split(_JOINT)[1:])
