"""The position of a reader in the log, with all that the void rule and the rules need to continue from there.

A position is stored whole with all data that depends on it: index, checkpoints, published row, archive.
"""

from __future__ import annotations

import msgspec

from replica.notary.errors import FormatUnknown
from replica.notary.genesis import NO_LEDGER, LedgerId
from replica.notary.records import BarrierRecord
from replica.notary.untrusted import UNREADABLE

POSITION_VERSION = 4  # 1 to 3 were layouts of logs that this release does not read
BEGIN = -1  # the offset of a reader that has read nothing


class Position(msgspec.Struct, frozen=True, array_like=True):
    """The newest record read, and what is in force after it.

    ledger_id: what the genesis names, zeros before it.
    offset: of the newest record read, -1 before the first. digest: SHA-256 of that record's bytes, empty at -1.
    topic_id: the log's own identity. barrier: the barrier in force, None before the first; barrier_offset: where it is.
    stamp_us: the highest stamp of all counting requests so far, 0 before the first.
    seen: sequence numbers met in the activation in force, as ascending ranges [start, end) that do not touch.
    counted_offset: the newest counting record that shows that the holder lives, the barrier included; by it a claim to
    a lease is judged (replica/notary/leases.py).
    ledger_offset: of the newest completion: how many requests counted so far, but for what lost records name.
    """

    version: int
    ledger_id: LedgerId
    topic_id: str
    offset: int = BEGIN
    digest: bytes = b""
    barrier: BarrierRecord | None = None
    barrier_offset: int = BEGIN
    stamp_us: int = 0
    seen: tuple[tuple[int, int], ...] = ()
    counted_offset: int = BEGIN
    ledger_offset: int = 0

    @property
    def epoch(self) -> int:
        """The epoch in force; 0 before the first barrier."""
        return 0 if self.barrier is None else self.barrier.epoch


class _Versioned(msgspec.Struct, array_like=True):
    version: int  # first in every version; the rest is skipped


_encoder = msgspec.msgpack.Encoder()
_version_decoder = msgspec.msgpack.Decoder(_Versioned)
_decoder = msgspec.msgpack.Decoder(Position)


def begin(topic_id: str) -> Position:
    """The position before the first record of a log."""
    return Position(POSITION_VERSION, NO_LEDGER, topic_id)


def ledger_of(position: Position | None) -> bytes:
    """The ledger at a position; NO_LEDGER before the first record."""
    return NO_LEDGER if position is None else position.ledger_id


def offset_of(position: Position | None) -> int:
    """The log offset of a position; BEGIN for none."""
    return BEGIN if position is None else position.offset


def encode_position(position: Position) -> bytes:
    """The bytes in which a position is stored."""
    return _encoder.encode(position)


def decode_position(raw: bytes) -> Position:
    """A stored position. Raises FormatUnknown when a newer release wrote it, or when the bytes are damaged."""
    try:
        version = _version_decoder.decode(raw).version
        if version != POSITION_VERSION:
            raise FormatUnknown(f"a stored position has version {version}, this release knows {POSITION_VERSION}")
        position = _decoder.decode(raw)
    except UNREADABLE as error:
        raise FormatUnknown(f"a stored position cannot be read: {error}") from None
    if _encoder.encode(position) != raw:
        raise FormatUnknown("a stored position cannot be read: its bytes are not those that encode it")
    return position
