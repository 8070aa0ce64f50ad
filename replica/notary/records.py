"""The records of the request log, as MessagePack arrays (docs/decisions/0001 has the measurements behind the choice).

A *barrier* opens an activation; its layout is fixed for ever, so that each release can read each barrier. A *request*
is one submission. A *sign of life* shows that the holder of a lease lives. Three kinds have no verdict: *acts* of
operators, *registrations* of parties, and *salvages* of a lost range. Every record but a barrier begins with kind,
format, activation id and sequence number, in every format.

The bounds in the types are part of the format: a record that breaks one is undecodable. So a counting record always
fits a position and the database columns. No element may follow the last one, because a reader would have to skip it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Annotated, Any, NamedTuple

import msgspec

from replica.notary.errors import BadRequest, InvariantBroken
from replica.notary.granters import FIRST_LATER, Granter, LaterGranter, Name
from replica.notary.requests import (
    DIGEST_BYTES,
    TIME_MAX_US,
    PublicKey,
    Signature,
    Submission,
    check_note,
    check_party,
    check_submission_id,
)
from replica.notary.untrusted import UNREADABLE

FORMAT = 2  # the newest record format that this release reads
ACTIVATION_ID_BYTES = 16
RECORD_MAX_BYTES = 1_000_000  # the largest value a writer makes; a request of 9,999 states has about 361,000 bytes
BODY_MAX_BYTES = 65_536  # of an act
NO_PARTS = bytes(DIGEST_BYTES)  # the disclosure root of a request that is not shown in parts

ActivationId = Annotated[bytes, msgspec.Meta(min_length=ACTIVATION_ID_BYTES, max_length=ACTIVATION_ID_BYTES)]
Epoch = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
SequenceNumber = Number
StampUs = Annotated[int, msgspec.Meta(ge=0, le=TIME_MAX_US)]
Body = Annotated[bytes, msgspec.Meta(max_length=BODY_MAX_BYTES)]
Digest = Annotated[bytes, msgspec.Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
NoneYet = Annotated[tuple[bytes, ...], msgspec.Meta(max_length=0)]
"""For what a later release has here."""


class BarrierRecord(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=0):
    """Opens an activation. The layout never changes, but a later format may have granters of its own.

    `replica` wrote it; in a release of a lease it is the next holder, or empty. `site` and the number of its term are
    for a later release: no replica names them yet.
    """

    epoch: Epoch
    activation_id: ActivationId
    replica: Name
    granter: Granter
    record_format: Number
    rules_version: Number
    site: tuple[Name, Number] | None = None


class _LaterBarrier(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=0):
    """A barrier whose granter may be one of a later format."""

    epoch: Epoch
    activation_id: ActivationId
    replica: Name
    granter: Any
    record_format: Number
    rules_version: Number
    site: tuple[Name, Number] | None


class RequestRecord(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False, tag=1):
    """One submission. `stamp_us` is the submission time by the active's clock, in microseconds UTC. `request` has the
    canonical bytes, which name party, command and terms (replica/notary/terms.py).

    An acceptance of its command counts if it was judged at most `deduplication_us` microseconds before this record; if
    the canonical bytes name a ledger offset, those above that one count instead.
    """

    format: int
    activation_id: ActivationId
    sequence: SequenceNumber
    stamp_us: StampUs
    request: bytes
    deduplication_us: StampUs
    submission_id: str
    public_key: PublicKey
    signature: Signature
    disclosure_root: Digest  # NO_PARTS
    openings: NoneYet
    consents: NoneYet


class SignOfLifeRecord(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=2):
    """Shows that the holder of a lease lives, and nothing else. No time judged depends on the stamp."""

    format: int
    activation_id: ActivationId
    sequence: SequenceNumber
    stamp_us: StampUs


class ActRecord(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=3):
    """What an operator did or decided. `name` is what it is about; `replaces` is the number of acts of this name that
    the operator knew of; `body` depends on the name. `signature` is by `public_key` over docs/formats.md's bytes."""

    format: int
    activation_id: ActivationId
    sequence: SequenceNumber
    stamp_us: StampUs
    name: str
    replaces: SequenceNumber
    body: Body
    operator: str
    reason: str
    public_key: PublicKey
    signature: Signature


class RegistrationRecord(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=4):
    """A key of a party, valid in [from_us, until_us) from this record on; an empty period revokes it. `before` is the
    number of registrations of this party and key that the operator knew of."""

    format: int
    activation_id: ActivationId
    sequence: SequenceNumber
    stamp_us: StampUs
    party: str
    party_key: PublicKey
    before: SequenceNumber
    from_us: StampUs
    until_us: StampUs
    operator: str
    public_key: PublicKey
    signature: Signature


class SalvageRecord(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=5):
    """Declares that the log lacks the records of a range, and which salvage stands in for them."""

    format: int
    activation_id: ActivationId
    sequence: SequenceNumber
    first_offset: SequenceNumber
    last_offset: SequenceNumber
    digest: Digest


NoteRecord = ActRecord | RegistrationRecord | SalvageRecord
"""Records that count and have no verdict: no completion comes from them."""

Record = BarrierRecord | RequestRecord | SignOfLifeRecord | NoteRecord

_BARRIER_HEAD = b"\x98\x00"  # an array of eight whose first element, the kind, is 0
_encoder = msgspec.msgpack.Encoder()
_barrier_decoder = msgspec.msgpack.Decoder(BarrierRecord)
_later_barrier_decoder = msgspec.msgpack.Decoder(_LaterBarrier)
_InForce = RequestRecord | SignOfLifeRecord | NoteRecord


def request_record(  # noqa: PLR0917 - the fields of a record, in its order
    format: int,
    activation_id: bytes,
    sequence: int,
    stamp_us: int,
    submission: Submission,
    deduplication_us: int,
) -> RequestRecord:
    """The record of a submission: what it signed, and what the replica that appends it adds."""
    return RequestRecord(
        format,
        activation_id,
        sequence,
        stamp_us,
        submission.request,
        deduplication_us,
        submission.submission_id,
        submission.public_key,
        submission.signature,
        NO_PARTS,
        (),
        (),
    )


class RecordFormat(NamedTuple):
    """What makes a request record of a format, and what reads all its records but barriers."""

    make_request: Callable[[int, bytes, int, int, Submission, int], RequestRecord]
    decoder: msgspec.msgpack.Decoder[_InForce]


RECORD_FORMATS: dict[int, RecordFormat] = {
    2: RecordFormat(request_record, msgspec.msgpack.Decoder(RequestRecord | SignOfLifeRecord | NoteRecord)),
}
"""Every record format that this release reads, by its number."""

RECORD_FORMAT_OF = {3: 2}
"""The record format that a barrier names together with a version of the rules."""


def are_known(record_format: int, rules_version: int) -> bool:
    """Whether this release can read what a barrier names."""
    return RECORD_FORMAT_OF.get(rules_version) == record_format


class _Head(msgspec.Struct, array_like=True):
    """The first elements of every record; the rest is skipped."""

    kind: int
    format: int


_head_decoder = msgspec.msgpack.Decoder(_Head)


class Undecodable(ValueError):
    """The bytes are no record of the format in force; such a record is void for everyone."""


def encode_record(record: Record) -> bytes:
    """The bytes of a record as the log keeps them. Raises InvariantBroken when they are more than a log accepts. So
    encode all records of a group before the first one is appended."""
    value = _encoder.encode(record)
    if len(value) > RECORD_MAX_BYTES:
        check_sizes([value])
    return value


def check_sizes(values: Iterable[bytes]) -> None:
    """Raises InvariantBroken when one of these records has more bytes than a log accepts."""
    if (longest := max(map(len, values), default=0)) > RECORD_MAX_BYTES:
        raise InvariantBroken(f"a record of {longest} bytes, the limit is {RECORD_MAX_BYTES}")


def decode_record(value: bytes, format_in_force: int) -> Record:
    """A record from the log's bytes, read in the format that the barrier in force names. Raises Undecodable."""
    try:
        if value[:2] == _BARRIER_HEAD:
            return decode_barrier(value)
        known = RECORD_FORMATS.get(format_in_force)
        if known is None:
            raise Undecodable("no format is in force")
        record = known.decoder.decode(value)
        if record.format != format_in_force:
            raise Undecodable(f"format {record.format}, in force is {format_in_force}")
        if isinstance(record, RequestRecord):
            check_submission_id(record.submission_id)
            if record.disclosure_root != NO_PARTS:
                raise BadRequest("a disclosure root, and no request is shown in parts yet")
        elif not isinstance(record, SignOfLifeRecord):
            _check_note(record)
        return record
    except (*UNREADABLE, BadRequest) as error:  # a validation error is a decode error too
        raise Undecodable(str(error)) from None


def decode_barrier(value: bytes) -> BarrierRecord:
    """The barrier in these bytes. Raises an error of UNREADABLE, and BadRequest for bytes that are not exactly those
    that encode it."""
    try:
        barrier: BarrierRecord | _LaterBarrier = _barrier_decoder.decode(value)
    except msgspec.ValidationError:
        barrier = _later_barrier_decoder.decode(value)
        if are_known(barrier.record_format, barrier.rules_version) or not _is_later(barrier.granter):
            raise
    if _encoder.encode(barrier) != value:
        raise BadRequest("a barrier that is not in its shortest encoding")
    if isinstance(barrier, _LaterBarrier):
        return BarrierRecord(*msgspec.structs.astuple(msgspec.structs.replace(barrier, granter=LaterGranter())))
    return barrier


def _is_later(granter: Any) -> bool:
    """Whether it is one of a later format."""
    return isinstance(granter, list) and bool(granter) and type(granter[0]) is int and granter[0] >= FIRST_LATER


def _check_note(record: NoteRecord) -> None:
    """Raises BadRequest for a range or a text that no writer makes."""
    if isinstance(record, SalvageRecord):
        if record.first_offset > record.last_offset:
            raise BadRequest("a lost range begins after its end")
    elif isinstance(record, RegistrationRecord):
        check_party(record.party)
        check_note("operator", record.operator)
    else:
        for name, text in (("name", record.name), ("operator", record.operator), ("reason", record.reason)):
            check_note(name, text)


def format_named(value: bytes) -> int:
    """The format that a record's bytes name; 0 where they name none that is known, as those of a barrier do not."""
    try:
        named = _head_decoder.decode(value)
    except UNREADABLE:
        return 0
    return named.format if named.kind and named.format in RECORD_FORMATS else 0


def record_digest(value: bytes) -> bytes:
    """SHA-256 of a record's bytes. It binds a position to the log that it was read from."""
    return sha256(value).digest()
