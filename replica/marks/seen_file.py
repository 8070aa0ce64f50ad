"""The seen file: the newest marks that one replica knows, on its disk: its own, and the newest of each peer's.

It lies beside the index and not in it: who moves an index away, or makes it anew, leaves the marks. Two slots are
written in turns, each with a number and a checksum, so that a power cut during a write leaves the other slot. A file
whose slots are both damaged counts as none, and is named (docs/formats.md).
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Mapping
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Protocol

import msgspec
import structlog

from replica.notary.errors import BadRequest, SeenFileUnwritable
from replica.notary.marks import MARK_MAX_BYTES, NAME_MAX, PEERS_MAX, decode_mark, mark_of
from replica.notary.position import Position, encode_position
from replica.notary.untrusted import UNREADABLE

log = structlog.get_logger()

SEEN_NAME = "seen"
SLOT_BYTES = 256 * 1_024  # for PEERS_MAX + REFUTED_MAX + 2 marks of the largest kind
REFUTED_MAX = 8  # damaged peers at once
_MAGIC = b"notary/seen/1\n\0\0"
_HEAD = struct.Struct(f">{len(_MAGIC)}sQI")  # magic, number of the write, bytes of the content
_CHECKSUM_BYTES = 32

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=NAME_MAX)]
_Raw = Annotated[bytes, msgspec.Meta(max_length=MARK_MAX_BYTES)]


class Seen(msgspec.Struct, frozen=True):
    """The marks in a seen file. `contradicted`: the mark with which this replica ended, because the log contradicts it;
    `contradicted_own`: it is a position on this disk. `refuted`: by peer, a mark that the peer tells and the log
    refutes."""

    own: Position | None = None
    peers: Mapping[str, Position] = {}
    contradicted: Position | None = None
    contradicted_own: bool = False
    refuted: Mapping[str, Position] = {}


class SeenState(StrEnum):
    """What a start finds of the file."""

    MISSING = "missing"  # a first start, or another disk
    WHOLE = "whole"
    SLOT_TORN = "slot_torn"  # by a power cut during a write; the slot before it counts
    DAMAGED = "damaged"  # no slot can be read: the replica starts as without


class SeenFile(Protocol):
    """Where one replica keeps its marks."""

    def read(self) -> tuple[Seen, SeenState]:
        """The newest marks that are whole. Called once, before the first write."""

    async def write(self, seen: Seen) -> None:
        """Replace the marks; they are on the disk on return. Raises SeenFileUnwritable: then the marks before, or
        these, count."""


class _Content(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    own: _Raw
    peers: Annotated[dict[_Name, _Raw], msgspec.Meta(max_length=PEERS_MAX)]
    contradicted: _Raw
    contradicted_own: bool
    refuted: Annotated[dict[_Name, _Raw], msgspec.Meta(max_length=REFUTED_MAX)]


_decoder = msgspec.msgpack.Decoder(_Content)


def encode_slot(number: int, seen: Seen) -> bytes:
    """The bytes of a slot."""
    peers = {name: _raw(mark) for name, mark in sorted(seen.peers.items())}
    refuted = {name: _raw(mark) for name, mark in sorted(seen.refuted.items())}
    content = msgspec.msgpack.encode(
        _Content(_raw(seen.own), peers, _raw(seen.contradicted), seen.contradicted_own, refuted)
    )
    head = _HEAD.pack(_MAGIC, number, len(content))
    return head + content + sha256(head + content).digest()


def decode_slot(raw: bytes) -> tuple[int, Seen] | None:
    """Number and marks of a slot; None when it is not whole."""
    if len(raw) < _HEAD.size:
        return None
    magic, number, size = _HEAD.unpack_from(raw)
    end = _HEAD.size + size
    if magic != _MAGIC or size > SLOT_BYTES or raw[end : end + _CHECKSUM_BYTES] != sha256(raw[:end]).digest():
        return None
    try:
        content = _decoder.decode(raw[_HEAD.size : end])
        peers, refuted = (
            {name: decode_mark(mark) for name, mark in marks.items()} for marks in (content.peers, content.refuted)
        )
        return number, Seen(_mark(content.own), peers, _mark(content.contradicted), content.contradicted_own, refuted)
    except (BadRequest, *UNREADABLE):
        return None


def newest_of(slots: tuple[bytes, bytes]) -> tuple[int, Seen, SeenState]:
    """Number and marks of the newest whole slot, and the state of the file. Pure. An unwritten slot is not torn."""
    found = [decode_slot(raw) for raw in slots]
    whole = [slot for slot in found if slot is not None]
    torn = any(slot is None and any(raw) for slot, raw in zip(found, slots, strict=True))
    if not whole:
        return 0, Seen(), SeenState.DAMAGED
    number, seen = max(whole, key=lambda slot: slot[0])
    return number, seen, SeenState.SLOT_TORN if torn else SeenState.WHOLE


def _raw(mark: Position | None) -> bytes:
    return b"" if mark is None else encode_position(mark_of(mark))


def _mark(raw: bytes) -> Position | None:
    return decode_mark(raw) if raw else None


class DiskSeenFile:
    """A seen file on a disk. One write at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._number = 0

    def read(self) -> tuple[Seen, SeenState]:
        """See SeenFile."""
        try:
            with self._path.open("rb") as file:
                slots = file.read(SLOT_BYTES), file.read(SLOT_BYTES)
        except FileNotFoundError:
            return Seen(), SeenState.MISSING
        except OSError as error:
            log.error("seen_file_unreadable", path=str(self._path), detail=str(error))
            return Seen(), SeenState.DAMAGED
        self._number, seen, state = newest_of(slots)
        return seen, state

    async def write(self, seen: Seen) -> None:
        """See SeenFile."""
        number = self._number + 1
        try:
            await asyncio.to_thread(self._store, number % 2, encode_slot(number, seen))
        except OSError as error:  # the next write takes the same slot: the other one is whole
            raise SeenFileUnwritable(f"{self._path}: {error}") from error
        self._number = number

    def _store(self, slot: int, raw: bytes) -> None:
        if not self._path.exists():
            self._create()
        fd = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            written = os.pwrite(fd, raw, slot * SLOT_BYTES)
            if written != len(raw):
                raise OSError(f"{written} of {len(raw)} bytes were written")
            os.fdatasync(fd)
        finally:
            os.close(fd)

    def _create(self) -> None:
        """An empty file of full size, whose name is on the disk: later writes change no size."""
        fresh = self._path.with_name(f"{self._path.name}.new")
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, 2 * SLOT_BYTES)
            os.fsync(fd)
        finally:
            os.close(fd)
        fresh.rename(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


class SeenDisk:
    """The part of a machine's disk with its seen file, in memory: it outlives `MemorySeenFile`, which is one process'
    access. A power cut loses what was written and not synced, or leaves half of it."""

    def __init__(self) -> None:
        self.slots = [b"", b""]  # on the disk
        self.cached: dict[int, bytes] = {}  # written and not synced, by slot

    def cut(self, kept: Mapping[int, float] = {}) -> None:
        """Lose all power. `kept`: which share of a slot's un-synced bytes reached the disk; none where not named."""
        for slot, raw in self.cached.items():
            size = round(len(raw) * kept.get(slot, 0.0))
            self.slots[slot] = raw[:size] + self.slots[slot][size:] if size else self.slots[slot]
        self.cached = {}

    def remove(self) -> None:
        """Lose the file, as with a disk that is replaced."""
        self.slots, self.cached = [b"", b""], {}


class MemorySeenFile:
    """A seen file over a SeenDisk. `sync_s`: how long a sync takes; a process that ends meanwhile has not synced."""

    def __init__(self, disk: SeenDisk | None = None, sync_s: float = 0.0) -> None:
        self.disk = disk or SeenDisk()
        self.broken = False  # the disk takes no writes
        self._sync_s = sync_s
        self._number = 0

    def read(self) -> tuple[Seen, SeenState]:
        """See SeenFile."""
        slots = [self.disk.cached.get(slot, raw) for slot, raw in enumerate(self.disk.slots)]
        if not any(slots):
            return Seen(), SeenState.MISSING
        self._number, seen, state = newest_of((slots[0], slots[1]))
        return seen, state

    async def write(self, seen: Seen) -> None:
        """See SeenFile."""
        if self.broken:
            raise SeenFileUnwritable("the disk in memory takes no writes")
        self._number += 1
        slot = self._number % 2
        self.disk.cached[slot] = encode_slot(self._number, seen)
        await asyncio.sleep(self._sync_s)
        if slot in self.disk.cached:  # else the power was cut meanwhile
            self.disk.slots[slot] = self.disk.cached.pop(slot)
