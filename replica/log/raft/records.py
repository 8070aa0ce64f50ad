"""Segment files as bytes: the form of a record, and how far a file can be read. Pure.

    file header   magic, format, first index, nonce, CRC-32
    record        body length, CRC-32, index, view, kind, body     (little-endian; the rest of the file is zeros)
    sync mark     a record of kind MARK: all up to its index was synced, and all up to `commit_idx` committed, before
                  what follows was written

The CRC is seeded with the file's nonce, so that no record of another file, or of this block's earlier life, is taken
for one of this file. A mark has the nonce as well, which no client knows: it can be found behind damage. So damage
that a mark follows hit what was synced; damage without one is a write that a crash tore, and is cut off.
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from zlib import crc32

import msgspec

from ha.raft.messages import Entry, Kind, NodeId
from replica.notary.errors import FormatUnknown
from replica.notary.merkle import NODE

FORMAT = 1
MARK = 255
NONCE_BYTES = 16
LANDMARK_EVERY = 64  # entries that are read to find one
_MAGIC = b"NOTLOG\r\n"
_FILE_HEADER = struct.Struct(f"<8sIQ{NONCE_BYTES}sI")
_HEADER = struct.Struct("<IIQQB")
_CHECKED = struct.Struct("<IQQB")  # the header without its CRC
_MARK_BODY = struct.Struct(f"<{NONCE_BYTES}sQ")
FILE_HEADER_BYTES = _FILE_HEADER.size
MARK_BYTES = _HEADER.size + _MARK_BODY.size
_LEAF = b"\x00"
_KINDS = {kind.value: kind for kind in Kind}
_members = msgspec.msgpack.Decoder(tuple[bytes, tuple[NodeId, ...]])


@dataclass(frozen=True, slots=True)
class FileHeader:
    """What a segment begins with."""

    first_idx: int
    nonce: bytes

    @property
    def seed(self) -> int:
        """What the CRCs of this file begin with."""
        return zlib.crc32(self.nonce)

    def encode(self) -> bytes:
        """The file's first bytes."""
        fields = (_MAGIC, FORMAT, self.first_idx, self.nonce)
        return _FILE_HEADER.pack(*fields, zlib.crc32(_FILE_HEADER.pack(*fields, 0)))


def decode_file_header(data: bytes) -> FileHeader | None:
    """The header; None if the bytes are no segment header in a format that this release knows."""
    if len(data) < FILE_HEADER_BYTES:
        return None
    magic, file_format, first_idx, nonce, crc = _FILE_HEADER.unpack_from(data)
    whole = crc == zlib.crc32(_FILE_HEADER.pack(magic, file_format, first_idx, nonce, 0))
    return FileHeader(first_idx, nonce) if whole and magic == _MAGIC and file_format == FORMAT else None


def payload_of(entry: Entry) -> bytes:
    """The payload after a record's header: the body, and for some kinds the nodes."""
    return entry.body if entry.kind is Kind.RAW else msgspec.msgpack.encode((entry.body, entry.nodes))


def _record(seed: int, idx: int, view: int, kind: int, payload: bytes) -> bytes:
    size = len(payload)
    crc = zlib.crc32(payload, zlib.crc32(_CHECKED.pack(size, idx, view, kind), seed))
    return _HEADER.pack(size, crc, idx, view, kind) + payload


def encode(seed: int, entry: Entry) -> bytes:
    """An entry as a record."""
    return _record(seed, entry.idx, entry.view, entry.kind, payload_of(entry))


def encode_mark(header: FileHeader, synced_idx: int, commit_idx: int) -> bytes:
    """A sync mark."""
    return _record(header.seed, synced_idx, 0, MARK, _MARK_BODY.pack(header.nonce, commit_idx))


@dataclass(frozen=True, slots=True)
class Mark:
    """All up to `synced_idx` was on disk, and all up to `commit_idx` committed, when this was written."""

    synced_idx: int
    commit_idx: int


@dataclass(frozen=True, slots=True)
class Record:
    """A valid record; it ends at the byte `end`."""

    idx: int
    view: int
    kind: int
    payload: bytes
    end: int

    def entry(self) -> Entry:
        """The entry. Raises msgspec.DecodeError if the payload is none, although its CRC is right."""
        if self.kind == Kind.RAW:
            return Entry(self.view, self.idx, Kind.RAW, self.payload)
        body, nodes = _members.decode(self.payload)
        return Entry(self.view, self.idx, _KINDS[self.kind], body, nodes)


def unknown_kind(kind: int) -> FormatUnknown:
    """The refusal of an entry of a kind that only a newer release knows: to leave it out would make another log."""
    return FormatUnknown(f"the log nodes' log has an entry of kind {kind}, which this release does not know")


def read_record(data: memoryview, at: int, seed: int) -> Record | None:
    """The record at a byte; None if no whole record begins there. Raises FormatUnknown, see `unknown_kind`."""
    start = at + _HEADER.size
    if start > len(data):
        return None
    size, crc, idx, view, kind = _HEADER.unpack_from(data, at)
    end = start + size
    if end > len(data):
        return None
    payload = bytes(data[start:end])
    if crc != zlib.crc32(payload, zlib.crc32(_CHECKED.pack(size, idx, view, kind), seed)):
        return None
    if kind not in _KINDS and kind != MARK:  # whole, so no write that a crash tore
        raise unknown_kind(kind)
    return Record(idx, view, kind, payload, end)


class Scan:
    """The entries of a file in turn. Afterwards: where they end, what follows, and the figures of the marks."""

    def __init__(self, data: memoryview, header: FileHeader, *, at: int = FILE_HEADER_BYTES, next_idx: int = 0) -> None:
        self._data = data
        self._header = header
        self.end = at  # what is after this byte is not read
        self.next_idx = next_idx or header.first_idx
        self.view = 0
        self.mark = Mark(0, 0)  # the highest figures of all marks

    def __iter__(self) -> Iterator[tuple[int, Record]]:
        """Each entry's record, and the byte at which it begins."""
        seed = self._header.seed
        while (record := read_record(self._data, self.end, seed)) is not None:
            at = self.end
            if record.kind == MARK:
                if not self._note(record):
                    return
                self.end = record.end
            elif record.idx == self.next_idx and record.view >= self.view:
                self.end, self.next_idx, self.view = record.end, record.idx + 1, record.view
                yield at, record
            else:
                return

    def _note(self, record: Record) -> bool:
        mark = _mark_of(record, self._header)
        if mark is not None:
            self.mark = Mark(max(self.mark.synced_idx, mark.synced_idx), max(self.mark.commit_idx, mark.commit_idx))
        return mark is not None

    def rest_is_empty(self) -> bool:
        """Whether nothing was ever written after the last record."""
        return not bytes(self._data[self.end :]).strip(b"\x00")

    def look_behind(self) -> None:
        """Read the marks after damage as well."""
        rest = bytes(self._data[self.end :])
        found = rest.find(self._header.nonce)
        while found >= 0:
            at = self.end + found - _HEADER.size
            record = read_record(self._data, at, self._header.seed) if at >= self.end else None
            if record is not None and record.kind == MARK:
                self._note(record)
            found = rest.find(self._header.nonce, found + 1)


def _mark_of(record: Record, header: FileHeader) -> Mark | None:
    if len(record.payload) != _MARK_BODY.size:
        return None
    nonce, commit_idx = _MARK_BODY.unpack(record.payload)
    return Mark(record.idx, commit_idx) if nonce == header.nonce else None


class Walk:
    """Reads a whole file in pieces: leaves of all its entries, and the few facts that a node needs of them.

    It does in one loop what `Scan` and `leaf_of_entry` do for one entry, at a quarter of the time. It costs about 100
    bytes of memory for an entry.
    """

    def __init__(self, header: FileHeader) -> None:
        self.header = header
        self.leaves: list[bytes] = []
        self.marks: list[Entry] = []  # entries of all kinds but RAW, and the first of each view
        self.landmarks: list[int] = []  # the byte at which each 64th entry begins
        self.end = FILE_HEADER_BYTES
        self.next_idx = header.first_idx
        self.view = 0
        self._seed = header.seed
        self._left = b""

    def feed(self, data: bytes) -> None:
        """Take the next bytes. At something that is no record it stands still for ever. Raises FormatUnknown."""
        data = self._left + data
        at, next_idx, present, seed, leaves = 0, self.next_idx, self.view, self._seed, self.leaves
        header_bytes, last, unpack = _HEADER.size, len(data) - _HEADER.size, _HEADER.unpack_from
        first, check, digest = self.header.first_idx, crc32, sha256  # names of this function are found faster
        while at <= last:
            size, crc, idx, view, kind = unpack(data, at)
            end = at + header_bytes + size
            checked = data[at : at + 4] + data[at + 8 : end]  # all but the CRC
            if check(checked, seed) != crc or end > len(data):
                break
            if kind != MARK:
                if idx != next_idx or view < present:
                    break
                if kind not in _KINDS:
                    raise unknown_kind(kind)
                if not (idx - first) % LANDMARK_EVERY:
                    self.landmarks.append(self.end + at)
                leaves.append(digest(_LEAF + checked).digest())
                if kind or view > present:
                    self.marks.append(Record(idx, view, kind, data[at + header_bytes : end], end).entry())
                next_idx, present = idx + 1, view
            at = end
        self.end, self.next_idx, self.view = self.end + at, next_idx, present
        self._left = data[at:]

    def raw_before(self) -> list[int]:
        """How many RAW entries of the file are before each landmark; the last item: in all of it."""
        first = self.header.first_idx
        others = [entry.idx - first for entry in self.marks if entry.kind is not Kind.RAW]
        count = self.next_idx - first
        places = [*range(0, count, LANDMARK_EVERY), count]
        return [place - bisect_left(others, place) for place in places]


def leaf_of(idx: int, view: int, kind: int, payload: bytes) -> bytes:
    """An entry as a leaf of a Merkle tree: its segment's, and the whole log's."""
    return sha256(_LEAF + _CHECKED.pack(len(payload), idx, view, kind) + payload).digest()


def leaf_of_entry(entry: Entry) -> bytes:
    """The same for an entry."""
    return leaf_of(entry.idx, entry.view, entry.kind, payload_of(entry))


def merkle_root(leaves: Sequence[bytes]) -> bytes:
    """The root over a segment's entries: the same on every node that has the same entries, whatever its files."""
    level = leaves
    while len(level) > 1:
        pairs = [sha256(NODE + left + right).digest() for left, right in zip(level[::2], level[1::2], strict=False)]
        level = [*pairs, level[-1]] if len(level) % 2 else pairs
    return level[0]


def root_of(entries: Iterable[Entry]) -> bytes:
    """The root over entries as they came from elsewhere."""
    return merkle_root([leaf_of_entry(entry) for entry in entries])
