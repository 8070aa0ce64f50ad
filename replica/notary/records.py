"""The records of the request log, as MessagePack arrays (docs/decisions/0001 has the measurements behind the choice).

Three kinds. A *barrier* opens an activation; its layout is fixed for ever, so that each release can read each barrier.
A *request* is one submission. A *settlement* names commands that were accepted but can never reach the log any more.
Request and settlement records begin with kind, format, activation id and sequence number in every format.
"""

from __future__ import annotations

from hashlib import sha256

import msgspec

from replica.notary.requests import PUBLIC_KEY_BYTES, SIGNATURE_BYTES, Submission

FORMAT = 1  # the newest record format that this release writes and reads
FORMATS_KNOWN = frozenset({1})
ACTIVATION_ID_BYTES = 16
RECORD_MAX_BYTES = 1_000_000  # the largest value a writer makes; a request of 9,999 states has about 361,000 bytes
SETTLED_PER_RECORD = 1_000  # keeps a settlement record far below RECORD_MAX_BYTES


class BarrierRecord(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """Opens an activation. The layout never changes.

    `database` names the database cluster that granted the epoch: `postgres:<system identifier>:<timeline>`.
    """

    epoch: int
    activation_id: bytes
    replica: str
    database: str
    record_format: int
    rules_version: int


class RequestRecord(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """One submission. `stamp_us` is the submission time by the active's clock, in microseconds UTC."""

    format: int
    activation_id: bytes
    sequence: int
    stamp_us: int
    submission: Submission


class SettledCommand(msgspec.Struct, frozen=True, array_like=True):
    """A command that was accepted by an earlier activation and is not in the log: rejected, may be resubmitted."""

    user_id: str
    command_id: str
    act_as: tuple[str, ...]
    submission_id: str
    tx_id: bytes
    content_digest: bytes


class SettlementRecord(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Settles commands of earlier activations; each gets its completion from this record."""

    format: int
    activation_id: bytes
    sequence: int
    commands: tuple[SettledCommand, ...]


Record = BarrierRecord | RequestRecord | SettlementRecord

_BARRIER_HEAD = b"\x97\x00"  # an array of seven whose first element, the kind, is 0
_encoder = msgspec.msgpack.Encoder()
_barrier_decoder = msgspec.msgpack.Decoder(BarrierRecord)
_format_1_decoder: msgspec.msgpack.Decoder[RequestRecord | SettlementRecord] = msgspec.msgpack.Decoder(
    RequestRecord | SettlementRecord
)


class Undecodable(ValueError):
    """The bytes are no record of the format in force; such a record is void for everyone."""


def encode_record(record: Record) -> bytes:
    """The bytes of a record as the log keeps them."""
    return _encoder.encode(record)


def decode_record(value: bytes, format_in_force: int) -> Record:
    """A record from the log's bytes, read in the format that the barrier in force names. Raises Undecodable."""
    try:
        if value[:2] == _BARRIER_HEAD:
            barrier = _barrier_decoder.decode(value)
            _check(len(barrier.activation_id) == ACTIVATION_ID_BYTES and barrier.epoch > 0, "activation id or epoch")
            return barrier
        record = _format_1_decoder.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:  # a validation error is a decode error as well
        raise Undecodable(str(error)) from None
    _check(record.format == format_in_force, f"format {record.format}, in force is {format_in_force}")
    _check(len(record.activation_id) == ACTIVATION_ID_BYTES and record.sequence >= 0, "activation id or sequence")
    if type(record) is RequestRecord:
        submission = record.submission
        _check(len(submission.public_key) == PUBLIC_KEY_BYTES, "public key")
        _check(len(submission.signature) == SIGNATURE_BYTES, "signature")
    return record


def record_digest(value: bytes) -> bytes:
    """SHA-256 of a record's bytes: ties a position to the log it was read from."""
    return sha256(value).digest()


def _check(holds: bool, what: str) -> None:
    if not holds:
        raise Undecodable(f"bad {what}")
