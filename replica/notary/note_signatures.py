"""What an operator signs for an act or a registration, and whether the signature holds.

No verdict depends on these signatures: the active verifies them before it appends, the audit afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from replica.notary.records import ActRecord, RegistrationRecord
from replica.notary.signatures import signature_holds

SignedNote = TypeVar("SignedNote", ActRecord, RegistrationRecord)
_FIRST_SIGNED = 4  # fields before it name the place in the log, which the operator does not know
_encoder = msgspec.msgpack.Encoder()


def note_statement(record: ActRecord | RegistrationRecord, ledger_id: bytes) -> bytes:
    """The bytes that the operator signs: a tag, the ledger, and what the record holds from its fifth element to the
    key."""
    tag = b"notary/act/2" if isinstance(record, ActRecord) else b"notary/party/2"
    return tag + ledger_id + _encoder.encode(msgspec.structs.astuple(record)[_FIRST_SIGNED:-1])


def signed_note(record: SignedNote, ledger_id: bytes, sign: Callable[[bytes], bytes]) -> SignedNote:
    """The record with its signature. `sign` is of the private key to the record's `public_key`."""
    return msgspec.structs.replace(record, signature=sign(note_statement(record, ledger_id)))


def note_signature_holds(record: ActRecord | RegistrationRecord, ledger_id: bytes) -> bool:
    """Whether the signature is that of the record's own `public_key`, for this ledger; whether that is an officer's is
    not asked."""
    return signature_holds(record.public_key, note_statement(record, ledger_id), record.signature)
