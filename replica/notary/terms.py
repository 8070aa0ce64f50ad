"""The canonical bytes that a party signs: a request, and the command and terms that it is for (docs/formats.md).

Records name none of it again. The period in force must be the one that was signed for, or nobody signed for the record.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple

import msgspec

from replica.notary.canonical import CHANGE_TAG, CONTENT_AT, REFS_AT, decode_request, encode_request
from replica.notary.errors import BadRequest
from replica.notary.records import RequestRecord
from replica.notary.requests import STATE_REF_BYTES, TIME_MAX_US, Request, check_actors, check_command_id

FOR_EVER_US = TIME_MAX_US  # the period of a record whose caller named a ledger offset
_WINDOW_BYTES = 17
_COUNTS = struct.Struct(">HHH")
_LENGTH = struct.Struct(">H")
_END = struct.Struct(">BQB")  # the deduplication, and 0: the request is not shown in parts
NO_PERIOD, PERIOD, LEDGER_OFFSET = 0, 1, 2
"""Kinds of deduplication: what canonical bytes end with, but for its value and a byte."""


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


class Signed(NamedTuple):
    """What canonical bytes say, the digest of their content, and the id of the command."""

    request: Request
    content_digest: bytes
    terms: Terms
    change_id: bytes


def decode_canonical(raw: bytes) -> Signed:
    """Raises BadRequest unless the bytes are exactly canonical.

    A request that it refuses is void for everyone: the checker's judge and the slices of jobs refuse the same bytes.
    """
    end = len(raw) - _END.size
    try:
        inputs_n, references_n, _ = _COUNTS.unpack_from(raw, CONTENT_AT)
        user_at = _end_of_text(raw, REFS_AT + STATE_REF_BYTES * (inputs_n + references_n) + _WINDOW_BYTES)
        command_at = _end_of_text(raw, user_at)
        actors_at = _end_of_text(raw, command_at)
        user_id, act_as = _known_actors(raw[user_at:command_at], raw[actors_at:end])
        command_id = raw[command_at + _LENGTH.size : actors_at].decode()
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise BadRequest(f"not canonical bytes of a request: {error}") from None
    check_command_id(command_id)
    request, digest = decode_request(raw[:user_at])
    terms = Terms(user_id, command_id, act_as, *_deduplication_in(raw[end:]))
    return Signed(
        request, digest, terms, sha256(CHANGE_TAG + raw[user_at:actors_at] + raw[actors_at + 1 : end]).digest()
    )


def period_us_of(period_s: float) -> int:
    """A period in whole microseconds; half of one goes to the even neighbour. From those, `period_s_of` leads back."""
    return round(period_s * 1e6)


def period_s_of(period_us: int) -> float:
    """A period in seconds, of whole microseconds up to `DEDUPLICATION_LIMIT_S`."""
    return period_us / 1e6


def signed_in(record: RequestRecord) -> Signed:
    """What a record's canonical bytes say. Raises BadRequest unless they are canonical, and were signed for the period
    that the record has."""
    signed = decode_canonical(record.request)
    if signed.terms.ledger_offset is not None:
        is_signed = record.deduplication_us == FOR_EVER_US
    else:
        period_us = signed.terms.deduplication_us
        is_signed = period_us in (None, record.deduplication_us)
    if not is_signed:
        raise BadRequest("the request was signed for another deduplication period")
    return signed


def _command(user_id: str, command_id: str, act_as: tuple[str, ...]) -> bytes:
    """What stands between the request and its deduplication; `act_as` ascends."""
    return b"".join([*_texts((user_id, command_id)), bytes([len(act_as)]), *_texts(act_as)])


@lru_cache(1_024)  # few users have most commands; what is refused is not kept
def _known_actors(user: bytes, actors: bytes) -> tuple[str, tuple[str, ...]]:
    """The user id and the parties that act, of what stands before and after the command id. Raises BadRequest,
    IndexError and UnicodeDecodeError."""
    count, at, act_as = actors[0], 1, []
    for _ in range(count):
        end = _end_of_text(actors, at)
        act_as.append(actors[at + _LENGTH.size : end].decode())
        at = end
    if at != len(actors):
        raise BadRequest("not canonical bytes of a request: wrong length")
    if act_as != sorted(act_as):
        raise BadRequest("not canonical bytes of a request: act_as is out of order")
    user_id = user[_LENGTH.size :].decode()
    check_actors(user_id, tuple(act_as))
    return user_id, tuple(act_as)


def _texts(texts: Sequence[str]) -> list[bytes]:
    return [part for text in texts for part in (_LENGTH.pack(len(text.encode())), text.encode())]


def _end(terms: Terms) -> bytes:
    if terms.deduplication_us is not None:
        return _END.pack(PERIOD, terms.deduplication_us, 0)
    if terms.ledger_offset is not None:
        return _END.pack(LEDGER_OFFSET, terms.ledger_offset, 0)
    return _END.pack(NO_PERIOD, 0, 0)


def _deduplication_in(raw: bytes) -> tuple[int | None, int | None]:
    """The period and the ledger offset that canonical bytes end with. Raises BadRequest, for a tear-off as well."""
    if len(raw) != _END.size:
        raise BadRequest("not canonical bytes of a request: wrong length")
    kind, value, parts = _END.unpack(raw)
    if parts:
        raise BadRequest("not canonical bytes of a request: these rules know no requests that are shown in parts")
    if kind > LEDGER_OFFSET or value > TIME_MAX_US or (kind == NO_PERIOD and value):
        raise BadRequest("not canonical bytes of a request: its deduplication")
    return (value if kind == PERIOD else None), (value if kind == LEDGER_OFFSET else None)


def _end_of_text(raw: bytes, at: int) -> int:
    """Where the text ends whose length stands at this place. Raises IndexError where the bytes end first."""
    end: int = at + _LENGTH.size + _LENGTH.unpack_from(raw, at)[0]
    if end > len(raw):
        raise IndexError("a text goes beyond the end")
    return end
