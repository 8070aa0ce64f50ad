"""The genesis: the record at offset 0 of every log, made with the log and by nobody who serves.

It names the ledger and its first officers. Whatever copies or restores the log keeps it. At any other offset these
bytes are no record of any format, so void.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from itertools import pairwise
from typing import Annotated, ClassVar, Literal

import msgspec

from replica.notary.requests import LEDGER_ID_BYTES, PublicKey
from replica.notary.untrusted import UNREADABLE

NO_LEDGER = bytes(LEDGER_ID_BYTES)  # of a reader that has not read a genesis
OFFICERS_MAX = 100
_HEAD = b"\x94\x08"  # an array of four whose first element, the kind, is 8

LedgerId = Annotated[bytes, msgspec.Meta(min_length=LEDGER_ID_BYTES, max_length=LEDGER_ID_BYTES)]


class GenesisRecord(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=8):
    """Which ledger a log is, and the public keys of its first officers, ascending. The layout never changes."""

    activation_id: ClassVar[bytes] = b""  # no activation wrote it
    sequence: ClassVar[int] = -1

    version: Literal[1]
    ledger_id: LedgerId
    officers: Annotated[tuple[PublicKey, ...], msgspec.Meta(min_length=1, max_length=OFFICERS_MAX)]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(GenesisRecord)


def new_genesis(officers: Iterable[bytes]) -> GenesisRecord:
    """The genesis of a new ledger. `officers`: 1 to OFFICERS_MAX public keys, 32 bytes each."""
    return GenesisRecord(1, secrets.token_bytes(LEDGER_ID_BYTES), tuple(sorted(set(officers))))


def encode_genesis(genesis: GenesisRecord) -> bytes:
    """The bytes of the record."""
    return _encoder.encode(genesis)


def decode_genesis(value: bytes) -> GenesisRecord | None:
    """The genesis in a record's bytes; None for any other bytes than those that encode one."""
    if value[:2] != _HEAD:
        return None
    try:
        genesis = _decoder.decode(value)
    except UNREADABLE:
        return None
    ascending = all(first < second for first, second in pairwise(genesis.officers))
    return genesis if ascending and encode_genesis(genesis) == value else None
