"""Acceptances: what a replica remembers of commands, as keys and values of its index. A function of the log.

Every notarised verdict is an acceptance of its command, under whatever rules, and also where it repeats a transaction
that another command had notarised. A deduplicated verdict is none, or retries would prolong the period. The first
acceptance of a command has the key `c` + change id. Each later one has that key + its log offset, so no entry changes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from replica.notary.requests import DIGEST_BYTES, TX_ID_BYTES

COMMAND_KEY = b"c"
FIRST_KEY_BYTES = 1 + DIGEST_BYTES  # a later one has 8 bytes more
_VALUE = struct.Struct(f">{TX_ID_BYTES}s{DIGEST_BYTES}sQQQ")
VALUE_BYTES = _VALUE.size


class Acceptance(NamedTuple):
    """An acceptance of a command: of which transaction and content, when it was judged, and where it is in ledger and
    log."""

    tx_id: bytes
    content_digest: bytes
    judged_us: int
    ledger_offset: int
    offset: int


encode_acceptance: Callable[[bytes, bytes, int, int, int], bytes] = _VALUE.pack
"""The value of an entry, from the fields of an Acceptance. It ends in the log offset, as all values of an index do."""


def decode_acceptance(value: bytes) -> Acceptance:
    """The acceptance in a value that `encode_acceptance` made."""
    return Acceptance(*_VALUE.unpack(value))


def first_key(change_id: bytes) -> bytes:
    """The key of a command's first acceptance; keys of later ones begin with it."""
    return COMMAND_KEY + change_id


def later_key(change_id: bytes, offset: int) -> bytes:
    """The key of an acceptance that is not the first one. They are in the order of their log offsets."""
    return COMMAND_KEY + change_id + offset.to_bytes(8, "big")


def newer(one: bytes | None, other: bytes | None) -> bytes | None:
    """Of two acceptances of a command, that of the higher log offset."""
    if one is None or other is None:
        return one or other
    return max(one, other, key=_recorded_at)


def _recorded_at(value: bytes) -> int:
    return int.from_bytes(value[-8:], "big")


def counts(acceptance: Acceptance, judged_us: int, deduplication_us: int, after: int | None) -> bool:
    """Whether the newest acceptance below a record is within the record's deduplication period.

    `judged_us`: the time that the record is judged at, or an active's newest time, before there is a record. `after`:
    the ledger offset that the submission named; None: it named none.
    """
    if after is not None:
        return acceptance.ledger_offset > after
    return judged_us - acceptance.judged_us <= deduplication_us
