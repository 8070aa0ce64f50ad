"""The canonical bytes of a request, version 2: they also cover the command and its terms (docs/formats.md).

Up to the party's name they are those of version 1 under another tag. So the content digest is the same. Records of
format 2 may hold either version. What was signed must be what the record has, or nobody signed for that record.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import msgspec

from replica.notary.canonical import REQUEST_TAG, decode_request, encode_request
from replica.notary.errors import BadRequest
from replica.notary.records import NO_OFFSET, RequestRecord, RequestRecordV2
from replica.notary.requests import STATE_REF_BYTES, TIME_MAX_US, Request, check_command

REQUEST_TAG_2 = b"notary/request/2"
FOR_EVER_US = TIME_MAX_US  # the period of a record whose caller named a ledger offset
_COUNTS_AT, _REFS_AT, _WINDOW_BYTES = 48, 52, 17
_COUNTS = struct.Struct(">HH")
_LENGTH = struct.Struct(">H")
_DEDUPLICATION = struct.Struct(">BQ")
_NONE, _PERIOD, _LEDGER_OFFSET = 0, 1, 2


class Terms(msgspec.Struct, frozen=True):
    """The command that a request was signed for; `act_as` ascends. At most one of the last two is set: a deduplication
    period in microseconds, or a ledger offset after which acceptances count."""

    user_id: str
    command_id: str
    act_as: tuple[str, ...]
    deduplication_us: int | None = None
    ledger_offset: int | None = None


def encode_request_2(request: Request, terms: Terms) -> bytes:
    """Canonical bytes, version 2, of a request and terms that keep to their bounds."""
    parts = [REQUEST_TAG_2, encode_request(request)[len(REQUEST_TAG) :], *_texts((terms.user_id, terms.command_id))]
    parts += [bytes([len(terms.act_as)]), *_texts(terms.act_as), _deduplication(terms)]
    return b"".join(parts)


def decode_request_2(raw: bytes) -> tuple[Request, bytes, Terms]:
    """The request, its content digest and its terms. Raises BadRequest unless the bytes are exactly canonical."""
    try:
        inputs_n, references_n = _COUNTS.unpack_from(raw, _COUNTS_AT)
        at = _REFS_AT + STATE_REF_BYTES * (inputs_n + references_n) + _WINDOW_BYTES
        _, at = _text(raw, at)
        request, digest = decode_request(REQUEST_TAG + raw[len(REQUEST_TAG_2) : at])
        user_id, at = _text(raw, at)
        command_id, at = _text(raw, at)
        act_as = []
        count, at = raw[at], at + 1
        for _ in range(count):
            party, at = _text(raw, at)
            act_as.append(party)
        kind, value = _DEDUPLICATION.unpack_from(raw, at)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise BadRequest(f"not canonical bytes of a request: {error}") from None
    if not raw.startswith(REQUEST_TAG_2) or len(raw) != at + _DEDUPLICATION.size:
        raise BadRequest("not canonical bytes of a request: wrong tag or length")
    if kind > _LEDGER_OFFSET or value > TIME_MAX_US or (kind == _NONE and value):
        raise BadRequest("not canonical bytes of a request: its deduplication")
    check_command(user_id, command_id, tuple(act_as), command_id)
    if act_as != sorted(act_as):
        raise BadRequest("not canonical bytes of a request: act_as is out of order")
    period_us, offset = (value if kind == _PERIOD else None), (value if kind == _LEDGER_OFFSET else None)
    return request, digest, Terms(user_id, command_id, tuple(act_as), period_us, offset)


def covers_command(raw: bytes) -> bool:
    """Whether a signature over these canonical bytes covers the command and its terms: those of version 2 do."""
    return raw.startswith(REQUEST_TAG_2)


def decode_either(raw: bytes) -> tuple[Request, bytes, Terms | None]:
    """The request in canonical bytes of either version, its content digest, and the terms of version 2.

    Raises BadRequest unless the bytes are exactly canonical.
    """
    return decode_request_2(raw) if covers_command(raw) else (*decode_request(raw), None)


def period_us_of(period_s: float) -> int:
    """A period in whole microseconds; half of one goes to the even neighbour. From those, `period_s_of` leads back."""
    return round(period_s * 1e6)


def period_s_of(period_us: int) -> float:
    """A period in seconds, of whole microseconds up to `DEDUPLICATION_LIMIT_S`."""
    return period_us / 1e6


def request_in(record: RequestRecord) -> tuple[Request, bytes]:
    """The request in a record, and its content digest. Raises BadRequest unless its bytes are canonical, of a version
    that the record's format allows, and signed for the record's command and terms."""
    raw = record.submission.request
    if not isinstance(record, RequestRecordV2) or not covers_command(raw):
        return decode_request(raw)
    request, digest, terms = decode_request_2(raw)
    submission = record.submission
    command = (submission.user_id, submission.command_id, tuple(sorted(submission.act_as)))
    if command != (terms.user_id, terms.command_id, terms.act_as):
        raise BadRequest("the request was signed for another command")
    if terms.ledger_offset is not None:
        is_signed = record.deduplication_us == FOR_EVER_US
    else:
        is_signed = terms.deduplication_us in (None, record.deduplication_us) and record.after_offset == NO_OFFSET
    if not is_signed:
        raise BadRequest("the request was signed for another deduplication period")
    return request, digest


def _texts(texts: Sequence[str]) -> list[bytes]:
    return [part for text in texts for part in (_LENGTH.pack(len(text.encode())), text.encode())]


def _deduplication(terms: Terms) -> bytes:
    if terms.deduplication_us is not None:
        return _DEDUPLICATION.pack(_PERIOD, terms.deduplication_us)
    if terms.ledger_offset is not None:
        return _DEDUPLICATION.pack(_LEDGER_OFFSET, terms.ledger_offset)
    return _DEDUPLICATION.pack(_NONE, 0)


def _text(raw: bytes, at: int) -> tuple[str, int]:
    """The text whose length stands at this place, and where it ends. Raises IndexError where the bytes end first."""
    (size,) = _LENGTH.unpack_from(raw, at)
    end = at + _LENGTH.size + size
    if end > len(raw):
        raise IndexError("a text goes beyond the end")
    return raw[at + _LENGTH.size : end].decode(), end
