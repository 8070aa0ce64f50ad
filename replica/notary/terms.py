"""The canonical bytes that a party signs: a request, and the command and terms that it is for (docs/formats.md).

What was signed must be what the record has, or nobody signed for that record.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache

import msgspec

from replica.notary.canonical import CONTENT_AT, REFS_AT, decode_request, encode_request
from replica.notary.errors import BadRequest
from replica.notary.records import NO_OFFSET, RequestRecord
from replica.notary.requests import STATE_REF_BYTES, TIME_MAX_US, Request, check_command

FOR_EVER_US = TIME_MAX_US  # the period of a record whose caller named a ledger offset
_WINDOW_BYTES = 17
_COUNTS = struct.Struct(">HHH")
_LENGTH = struct.Struct(">H")
_END = struct.Struct(">BQB")  # the deduplication, and 0: the request is not shown in parts
_NONE, _PERIOD, _LEDGER_OFFSET = 0, 1, 2


class Terms(msgspec.Struct, frozen=True):
    """The command that a request was signed for; `act_as` ascends. At most one of the last two is set: a deduplication
    period in microseconds, or a ledger offset after which acceptances count."""

    user_id: str
    command_id: str
    act_as: tuple[str, ...]
    deduplication_us: int | None = None
    ledger_offset: int | None = None


def encode_canonical(request: Request, terms: Terms) -> bytes:
    """Canonical bytes of a request and terms that keep to their bounds."""
    command = _command(terms.user_id, terms.command_id, terms.act_as)
    return encode_request(request) + command + _end(terms)


def decode_canonical(raw: bytes) -> tuple[Request, bytes, Terms]:
    """The request, its content digest and its terms. Raises BadRequest unless the bytes are exactly
    canonical."""
    try:
        inputs_n, references_n, _ = _COUNTS.unpack_from(raw, CONTENT_AT)
        at = REFS_AT + STATE_REF_BYTES * (inputs_n + references_n) + _WINDOW_BYTES
        _, at = _text(raw, at)
        request, digest = decode_request(raw[:at])
        user_id, at = _text(raw, at)
        command_id, at = _text(raw, at)
        act_as = []
        count, at = raw[at], at + 1
        for _ in range(count):
            party, at = _text(raw, at)
            act_as.append(party)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise BadRequest(f"not canonical bytes of a request: {error}") from None
    period_us, offset = _deduplication_in(raw[at:])
    check_command(user_id, command_id, tuple(act_as), command_id)
    if act_as != sorted(act_as):
        raise BadRequest("not canonical bytes of a request: act_as is out of order")
    return request, digest, Terms(user_id, command_id, tuple(act_as), period_us, offset)


def period_us_of(period_s: float) -> int:
    """A period in whole microseconds; half of one goes to the even neighbour. From those, `period_s_of` leads back."""
    return round(period_s * 1e6)


def period_s_of(period_us: int) -> float:
    """A period in seconds, of whole microseconds up to `DEDUPLICATION_LIMIT_S`."""
    return period_us / 1e6


def request_in(record: RequestRecord) -> tuple[Request, bytes]:
    """The request in a record, and its content digest. Raises BadRequest unless its bytes are canonical, and signed for
    the record's command and terms."""
    submission = record.submission
    raw, end = submission.request, len(submission.request) - _END.size
    command = _command(submission.user_id, submission.command_id, tuple(sorted(submission.act_as)))
    command_at = end - len(command)
    if command_at < 0 or raw[command_at:end] != command:  # written out and compared: much less work than reading it
        raise BadRequest("the request was signed for another command, or its bytes are not canonical")
    request, digest = decode_request(raw[:command_at])
    period_us, ledger_offset = _deduplication_in(raw[end:])
    if ledger_offset is not None:
        is_signed = record.deduplication_us == FOR_EVER_US
    else:
        is_signed = period_us in (None, record.deduplication_us) and record.after_offset == NO_OFFSET
    if not is_signed:
        raise BadRequest("the request was signed for another deduplication period")
    return request, digest


def _command(user_id: str, command_id: str, act_as: tuple[str, ...]) -> bytes:
    """What stands between the request and its deduplication; `act_as` ascends."""
    before, after = _around(user_id, act_as)
    command = command_id.encode()
    return before + _LENGTH.pack(len(command)) + command + after


@lru_cache(1_024)  # few users have most commands
def _around(user_id: str, act_as: tuple[str, ...]) -> tuple[bytes, bytes]:
    """What stands before and after the command id."""
    return b"".join(_texts((user_id,))), b"".join([bytes([len(act_as)]), *_texts(act_as)])


def _texts(texts: Sequence[str]) -> list[bytes]:
    return [part for text in texts for part in (_LENGTH.pack(len(text.encode())), text.encode())]


def _end(terms: Terms) -> bytes:
    if terms.deduplication_us is not None:
        return _END.pack(_PERIOD, terms.deduplication_us, 0)
    if terms.ledger_offset is not None:
        return _END.pack(_LEDGER_OFFSET, terms.ledger_offset, 0)
    return _END.pack(_NONE, 0, 0)


def _deduplication_in(raw: bytes) -> tuple[int | None, int | None]:
    """The period and the ledger offset that canonical bytes end with. Raises BadRequest, for a tear-off as well."""
    if len(raw) != _END.size:
        raise BadRequest("not canonical bytes of a request: wrong length")
    kind, value, parts = _END.unpack(raw)
    if parts:
        raise BadRequest("not canonical bytes of a request: these rules know no requests that are shown in parts")
    if kind > _LEDGER_OFFSET or value > TIME_MAX_US or (kind == _NONE and value):
        raise BadRequest("not canonical bytes of a request: its deduplication")
    return (value if kind == _PERIOD else None), (value if kind == _LEDGER_OFFSET else None)


def _text(raw: bytes, at: int) -> tuple[str, int]:
    """The text whose length stands at this place, and where it ends. Raises IndexError where the bytes end first."""
    (size,) = _LENGTH.unpack_from(raw, at)
    end = at + _LENGTH.size + size
    if end > len(raw):
        raise IndexError("a text goes beyond the end")
    return raw[at + _LENGTH.size : end].decode(), end
