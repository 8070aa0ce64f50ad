"""The canonical bytes of a request: a party signs them, the log keeps them, the content digest covers a part of them.

Here is what they say of the transaction; the command that it is submitted under follows (terms.py). Integers are
big-endian:

    offset  size  field
    0       16    the ASCII text `notary/request/3`, which keeps the signature from meaning anything else
    16      16    ledger id
    32      32    transaction id
    64      2     number of inputs, n                  \\
    66      2     number of references, m               |
    68      2     number of owners: 0, nobody owns yet  |
    70      36 n  inputs, ascending                      > the content: its SHA-256 after `notary/content/2`
    ...     36 m  references, ascending                 |  is the content digest
    ...     1     window flags: 1 = has from, 2 = has until
    ...     8     from, microseconds UTC, 0 if absent   |
    ...     8     until, microseconds UTC, 0 if absent /
    ...     2     length of the party's X.500 name in bytes
    ...           the X.500 name, UTF-8
"""

from __future__ import annotations

import struct
from functools import lru_cache
from hashlib import sha256
from operator import lt

from replica.notary.errors import BadRequest
from replica.notary.requests import (
    DERIVED,
    PARTY_MAX_BYTES,
    STATE_REF_BYTES,
    Request,
    TimeWindow,
    check_party,
    check_request,
)

REQUEST_TAG = b"notary/request/3"
CONTENT_TAG = b"notary/content/2"
CHANGE_TAG = b"notary/command/1"
LEDGER_AT, TX_ID_AT, CONTENT_AT, REFS_AT = 16, 32, 64, 70
_COUNTS = struct.Struct(">HHH")
_WINDOW = struct.Struct(">BQQ")
_LENGTH = struct.Struct(">H")
_HAS_FROM, _HAS_UNTIL = 1, 2
_NO_WINDOW = bytes(_WINDOW.size)
_PLAIN_INPUTS_MAX = 1_024


def encode_request(request: Request) -> bytes:
    """What canonical bytes begin with, of a request that `check_request` accepts; each has exactly one encoding."""
    party = request.party.encode()
    return b"".join(
        (
            REQUEST_TAG,
            request.ledger_id,
            request.tx_id,
            _COUNTS.pack(len(request.inputs), len(request.references), 0),
            *request.inputs,
            *request.references,
            _encode_window(request.window),
            _LENGTH.pack(len(party)),
            party,
        )
    )


def decode_request(raw: bytes) -> tuple[Request, bytes]:
    """The request that `encode_request` encodes so, and its content digest. Raises BadRequest unless the bytes are
    exactly canonical.

    Every reader of the log uses this function, so a request that it refuses is void for everyone.
    """
    fields = _plain_fields(raw)
    if fields is None:
        return _decode_any(raw)
    ledger_id, tx_id, inputs, party, length_at = fields
    return Request(ledger_id, tx_id, inputs, (), None, party), sha256(CONTENT_TAG + raw[CONTENT_AT:length_at]).digest()


def _plain_fields(raw: bytes) -> tuple[bytes, bytes, tuple[bytes, ...], str, int] | None:
    """Ledger id, transaction id, inputs, party and where its length stands, of canonical bytes of the usual kind: no
    references, no window. None for all others, valid or not: `_decode_any` decides about them.

    Readers of the log spend much of their time here, so one call takes all fields, and nothing is looked at twice.
    """
    counts = raw[CONTENT_AT:REFS_AT]
    layout = _plain_layout(counts)
    if layout is None:
        return None
    party_at = layout.size
    if not party_at < len(raw) <= party_at + PARTY_MAX_BYTES:
        return None
    tag, ledger_id, tx_id, _, *inputs, window, party_n = layout.unpack_from(raw)
    if tag != REQUEST_TAG or window != _NO_WINDOW or len(raw) != party_at + party_n:
        return None
    party = _known_party(raw[party_at:])
    if party is None or tx_id.endswith(DERIVED) or not all(map(lt, inputs, inputs[1:])):
        return None
    return ledger_id, tx_id, tuple(inputs), party, party_at - _LENGTH.size


@lru_cache(64)  # at most a megabyte
def _plain_layout(counts: bytes) -> struct.Struct | None:
    """The layout of a request whose numbers of inputs and references are these bytes; None unless it is usual."""
    if len(counts) != _COUNTS.size:
        return None
    inputs_n, references_n, owners_n = _COUNTS.unpack(counts)
    if references_n or owners_n or inputs_n > _PLAIN_INPUTS_MAX:
        return None
    return struct.Struct(f">16s16s32s6s{'36s' * inputs_n}{_WINDOW.size}sH")


@lru_cache(1_024)  # few parties sign most requests
def _known_party(raw: bytes) -> str | None:
    """The party of these bytes; None if they are none."""
    try:
        party = raw.decode()
        check_party(party)
    except (UnicodeDecodeError, BadRequest):
        return None
    return party


def _decode_any(raw: bytes) -> tuple[Request, bytes]:
    """`decode_request` of any bytes, with the reason when they are not canonical."""
    try:
        inputs_n, references_n, owners_n = _COUNTS.unpack_from(raw, CONTENT_AT)
        references_at = REFS_AT + STATE_REF_BYTES * inputs_n
        window_at = references_at + STATE_REF_BYTES * references_n
        flags, from_us, until_us = _WINDOW.unpack_from(raw, window_at)
        length_at = window_at + _WINDOW.size
        (party_bytes,) = _LENGTH.unpack_from(raw, length_at)
        party = raw[length_at + 2 :].decode()
    except (struct.error, UnicodeDecodeError) as error:
        raise BadRequest(f"not canonical bytes of a request: {error}") from None
    if owners_n:
        raise BadRequest("not canonical bytes of a request: these rules know no owners")
    if raw[:16] != REQUEST_TAG or len(raw) != length_at + 2 + party_bytes:
        raise BadRequest("not canonical bytes of a request: wrong tag or length")
    request = Request(
        raw[LEDGER_AT:TX_ID_AT],
        raw[TX_ID_AT:CONTENT_AT],
        tuple([raw[at : at + STATE_REF_BYTES] for at in range(REFS_AT, references_at, STATE_REF_BYTES)]),
        tuple([raw[at : at + STATE_REF_BYTES] for at in range(references_at, window_at, STATE_REF_BYTES)]),
        _decode_window(flags, from_us, until_us) if flags or from_us or until_us else None,
        party,
    )
    check_request(request)
    return request, sha256(CONTENT_TAG + raw[CONTENT_AT:length_at]).digest()


def ledger_id_in(raw: bytes) -> bytes:
    """Ledger id of canonical bytes."""
    return raw[LEDGER_AT:TX_ID_AT]


def tx_id_in(raw: bytes) -> bytes:
    """Transaction id of canonical bytes."""
    return raw[TX_ID_AT:CONTENT_AT]


def summarise(raw: bytes) -> tuple[bytes, bytes, int]:
    """Transaction id, content digest and number of states of canonical bytes; decodes nothing else."""
    inputs_n, references_n, _ = _COUNTS.unpack_from(raw, CONTENT_AT)
    length_at = REFS_AT + STATE_REF_BYTES * (inputs_n + references_n) + _WINDOW.size
    return raw[TX_ID_AT:CONTENT_AT], sha256(CONTENT_TAG + raw[CONTENT_AT:length_at]).digest(), inputs_n + references_n


def content_digest(request: Request) -> bytes:
    """SHA-256 over the canonical inputs, references and window: the content of a transaction id, once notarised."""
    return decode_request(encode_request(request))[1]


def change_id(user_id: str, command_id: str, act_as: tuple[str, ...]) -> bytes:
    """SHA-256 that identifies a command: user id, command id and act_as. The submission id does not count."""
    before, after = _around(user_id, act_as)
    command = command_id.encode()
    return sha256(before + len(command).to_bytes(2, "big") + command + after).digest()


@lru_cache(1_024)  # few users have most commands
def _around(user_id: str, act_as: tuple[str, ...]) -> tuple[bytes, bytes]:
    """What stands before and after the command id."""
    return CHANGE_TAG + _with_length(user_id), b"".join(map(_with_length, sorted(act_as)))


def _with_length(text: str) -> bytes:
    encoded = text.encode()
    return _LENGTH.pack(len(encoded)) + encoded


def _encode_window(window: TimeWindow | None) -> bytes:
    if window is None:
        return _WINDOW.pack(0, 0, 0)
    flags = (_HAS_FROM if window.from_us is not None else 0) | (_HAS_UNTIL if window.until_us is not None else 0)
    return _WINDOW.pack(flags, window.from_us or 0, window.until_us or 0)


def _decode_window(flags: int, from_us: int, until_us: int) -> TimeWindow:
    absent_but_set = (not flags & _HAS_FROM and from_us) or (not flags & _HAS_UNTIL and until_us)
    if flags > (_HAS_FROM | _HAS_UNTIL) or absent_but_set:
        raise BadRequest("not canonical bytes of a request: window flags and ends disagree")
    return TimeWindow(from_us if flags & _HAS_FROM else None, until_us if flags & _HAS_UNTIL else None)
