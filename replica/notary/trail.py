"""The operators' trail: acts and registrations of the log as JSON lines, each with the digest of the line before.

The log is the trail; lines are a copy for those who do not read it. Whoever keeps the newest digest can hold any later
export against it: a line that was changed, left out or added breaks the chain from there on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256

import msgspec

from replica.notary.counted import CountedNote
from replica.notary.note_signatures import note_signature_holds
from replica.notary.records import ActRecord, RegistrationRecord
from replica.notary.untrusted import UNREADABLE

BEFORE_THE_FIRST = bytes(32).hex()  # the digest in a trail's first line


class TrailLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One act or registration that counts. Byte strings in hexadecimal, times in microseconds UTC.

    `previous`: SHA-256 of the line before, without its newline. `signed`: whether the signature is that of
    `operator_key`. `name`, `body` and `reason` are those of an act, `party` to `until_us` those of a registration.
    """

    previous: str
    log_offset: int
    stamp_us: int
    operator: str
    operator_key: str
    signature: str
    signed: bool
    name: str | None = None
    body: str | None = None
    reason: str | None = None
    party: str | None = None
    party_key: str | None = None
    from_us: int | None = None
    until_us: int | None = None


def trail_lines(notes: Iterable[CountedNote], previous: str = BEFORE_THE_FIRST) -> Iterator[bytes]:
    """The lines of these notes in the log's order, without newlines. `previous`: the digest of the line before."""
    for note in notes:
        record = note.record
        if isinstance(record, ActRecord | RegistrationRecord):
            line = msgspec.json.encode(_line(note.offset, record, previous))
            previous = line_digest(line)
            yield line


def line_digest(line: bytes) -> str:
    """What the next line has as `previous`."""
    return sha256(line).hexdigest()


def first_broken(lines: Iterable[bytes], previous: str = BEFORE_THE_FIRST) -> int | None:
    """The number, from 0, of the first line that does not follow on the one before; None: the chain is whole.

    A line follows if it is a trail line in its one spelling, names the digest of the line before, and has a higher log
    offset. `previous`: the digest that the first line must name. Lines that are missing at the end are found only by
    who kept the newest digest.
    """
    offset = -1
    for number, line in enumerate(lines):
        try:
            decoded = _decoder.decode(line)
        except UNREADABLE:
            return number
        if decoded.previous != previous or decoded.log_offset <= offset or msgspec.json.encode(decoded) != line:
            return number
        previous, offset = line_digest(line), decoded.log_offset
    return None


_decoder = msgspec.json.Decoder(TrailLine)


def _line(offset: int, record: ActRecord | RegistrationRecord, previous: str) -> TrailLine:
    head = (previous, offset, record.stamp_us, record.operator, record.public_key.hex(), record.signature.hex())
    holds = note_signature_holds(record)
    if isinstance(record, ActRecord):
        return TrailLine(*head, holds, name=record.name, body=record.body.hex(), reason=record.reason)
    return TrailLine(
        *head,
        holds,
        party=record.party,
        party_key=record.party_key.hex(),
        from_us=record.from_us,
        until_us=record.until_us,
    )
