"""The text forms of byte strings and times in JSON, TOML and log lines: hexadecimal digits and RFC 3339."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

import msgspec

from replica.notary.errors import BadRequest

JSON_TIME_MAX_US = 253_402_300_799_999_999  # the end of the year 9999
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

Instant = Annotated[datetime, msgspec.Meta(tz=True)]


def bytes_from_hex(name: str, text: str, size: int) -> bytes:
    """`size` bytes from exactly their hexadecimal digits. Raises BadRequest naming the field."""
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raw = b""
    if len(raw) != size or len(text) != 2 * size:  # `fromhex` skips spaces
        raise BadRequest(f"{name} is {2 * size} hexadecimal digits")
    return raw


def format_time(time_us: int) -> str:
    """RFC 3339 of a time in microseconds UTC. Raises BadRequest beyond the year 9999."""
    return instant_of(time_us).isoformat(timespec="microseconds").replace("+00:00", "Z")


def parse_time(text: str) -> int:
    """Microseconds UTC of an RFC 3339 time. Raises BadRequest."""
    try:
        return microseconds_of(msgspec.convert(text, Instant))
    except msgspec.ValidationError as error:
        raise BadRequest(f"{text[:40]!r}: {error}") from None


def instant_of(time_us: int) -> datetime:
    """The instant of a time in microseconds UTC. Raises BadRequest beyond the year 9999."""
    try:
        return _EPOCH + time_us * _MICROSECOND
    except OverflowError:
        raise BadRequest("a time in JSON ends with the year 9999") from None


def microseconds_of(instant: datetime) -> int:
    """Microseconds UTC of an instant."""
    return (instant - _EPOCH) // _MICROSECOND
