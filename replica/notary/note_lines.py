"""Acts and registrations of the log as JSON lines, each with the digest of the line before.

The log is the record; lines are a copy for those who do not read it, such as a SIEM. Whoever keeps the newest digest
can hold any later export against it: a line that was changed, left out or added breaks the chain from there on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256
from typing import Annotated, Literal, NamedTuple

import msgspec

from replica.notary.counted import CountedNote
from replica.notary.errors import FormatUnknown
from replica.notary.note_signatures import note_signature_holds
from replica.notary.parties import PartyNote
from replica.notary.position import Position, decode_position, encode_position
from replica.notary.reading import read_records
from replica.notary.records import FORMAT, ActRecord, RegistrationRecord
from replica.notary.untrusted import UNREADABLE

Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Key = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
BEFORE_THE_FIRST = bytes(32).hex()  # the digest in an export's first line


class NoteLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One act or registration that counts. Byte strings in hexadecimal, times in microseconds UTC.

    `previous`: SHA-256 of the line before, without its newline. `signed`: whether the signature is that of
    `operator_key` over the ledger and the other members. `name` to `reason` are those of an act, `party` to `until_us`
    those of a registration.
    """

    previous: str
    ledger_id: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{32}$")]
    log_offset: Number
    stamp_us: Number
    operator: str
    operator_key: Key
    signature: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{128}$")]
    signed: bool
    name: str | None = None
    replaces: Number | None = None
    body: Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{2})*$")] | None = None
    reason: str | None = None
    party: str | None = None
    party_key: Key | None = None
    before: Number | None = None
    from_us: Number | None = None
    until_us: Number | None = None


class Exported(NamedTuple):
    """How far an export has come: what was read of the log, how many lines that made, the digest of the last one."""

    position: Position
    lines: int = 0
    digest: str = BEFORE_THE_FIRST


class _Cursor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`position`: as an index stores it, in hexadecimal."""

    version: Literal[1]
    position: str
    lines: Annotated[int, msgspec.Meta(ge=0)]
    digest: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


def read_on(before: Exported, records: Iterable[tuple[int, bytes]]) -> tuple[list[bytes], Exported]:
    """The lines of the records that follow, and how far the export has come with them. Raises what reading raises."""
    reading = read_records(before.position, records)
    notes = (one for one in reading.counted if isinstance(one, CountedNote))
    lines = list(note_lines(notes, reading.position.ledger_id, before.digest))
    digest = line_digest(lines[-1]) if lines else before.digest
    return lines, Exported(reading.position, before.lines + len(lines), digest)


def encode_cursor(done: Exported) -> bytes:
    """What a file keeps between two exports."""
    return msgspec.json.encode(_Cursor(1, encode_position(done.position).hex(), done.lines, done.digest)) + b"\n"


def decode_cursor(raw: bytes) -> Exported:
    """The reverse. Raises ValueError for bytes that `encode_cursor` did not make."""
    try:
        found = _cursor_decoder.decode(raw)
        return Exported(decode_position(bytes.fromhex(found.position)), found.lines, found.digest)
    except FormatUnknown as error:
        raise ValueError(error.detail) from None
    except UNREADABLE as error:
        raise ValueError(str(error)) from None


def note_lines(notes: Iterable[CountedNote], ledger_id: bytes, previous: str = BEFORE_THE_FIRST) -> Iterator[bytes]:
    """The lines of these notes in the log's order, without newlines. `previous`: the digest of the line before."""
    for note in notes:
        if isinstance(note.record, PartyNote):
            line = msgspec.json.encode(_line(note.offset, note.record, ledger_id, previous))
            previous = line_digest(line)
            yield line


def line_digest(line: bytes) -> str:
    """What the next line has as `previous`."""
    return sha256(line).hexdigest()


def previous_of(line: bytes) -> str:
    """The digest that a line names; that before the first where it is no line."""
    try:
        return _decoder.decode(line).previous
    except UNREADABLE:
        return BEFORE_THE_FIRST


def why_broken(lines: Iterable[bytes], previous: str = BEFORE_THE_FIRST) -> tuple[int, str] | None:
    """The number, from 0, of the first line that is not as it was made, and what is wrong; None: the chain is whole.

    A line is in its one spelling, names the digest of the line before and its ledger, has a higher log offset, and says
    by itself whether it is signed. `previous`: the digest that the first line must name. Lines that are missing at the
    end are found only by who kept the newest digest.
    """
    offset, ledger_id = -1, ""
    for number, line in enumerate(lines):
        try:
            decoded = _decoder.decode(line)
        except UNREADABLE:
            return number, "is no line of an export"
        if why := _why_not(line, decoded, previous, offset):
            return number, why
        if ledger_id not in ("", decoded.ledger_id):
            return number, "is of another ledger than the line before"
        ledger_id = decoded.ledger_id
        previous, offset = line_digest(line), decoded.log_offset
    return None


_decoder = msgspec.json.Decoder(NoteLine)
_cursor_decoder = msgspec.json.Decoder(_Cursor)


def _line(offset: int, record: PartyNote, ledger_id: bytes, previous: str) -> NoteLine:
    who = (record.operator, record.public_key.hex(), record.signature.hex())
    head = (previous, ledger_id.hex(), offset, record.stamp_us, *who)
    holds = note_signature_holds(record, ledger_id)
    if isinstance(record, ActRecord):
        return NoteLine(
            *head, holds, name=record.name, replaces=record.replaces, body=record.body.hex(), reason=record.reason
        )
    return NoteLine(
        *head,
        holds,
        party=record.party,
        party_key=record.party_key.hex(),
        before=record.before,
        from_us=record.from_us,
        until_us=record.until_us,
    )


def _why_not(line: bytes, decoded: NoteLine, previous: str, offset: int) -> str:
    """What is wrong with a line after one with this digest and log offset; empty when nothing is."""
    record = _record(decoded)
    if record is None:
        return "is neither an act nor a registration"
    if decoded.previous != previous:
        return "does not name the digest of the line before"
    if decoded.log_offset <= offset:
        return "has no higher log offset than the line before"
    if msgspec.json.encode(_line(decoded.log_offset, record, bytes.fromhex(decoded.ledger_id), previous)) != line:
        return "is not spelt as an export spells it, or says otherwise than its signature"
    return "" if decoded.signed else "has a signature that does not hold"


def _record(line: NoteLine) -> PartyNote | None:
    """The record of a line; its place in the log is not in it. None: no kind of note has just these members."""
    before = (FORMAT, bytes(16), 0, line.stamp_us)
    after = (line.operator, bytes.fromhex(line.operator_key), bytes.fromhex(line.signature))
    act = (line.name, line.replaces, line.body, line.reason)
    registration = (line.party, line.party_key, line.before, line.from_us, line.until_us)
    match act, registration:
        case (str(name), int(replaces), str(body), str(reason)), (None, None, None, None, None):
            operator, *signed = after
            return ActRecord(*before, name, replaces, bytes.fromhex(body), operator, reason, *signed)
        case (None, None, None, None), (str(party), str(key), int(number), int(from_us), int(until_us)):
            return RegistrationRecord(*before, party, bytes.fromhex(key), number, from_us, until_us, *after)
        case _:
            return None
