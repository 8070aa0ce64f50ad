"""Acts and registrations with true signatures, and logs of them."""

from __future__ import annotations

import msgspec
from nacl.signing import SigningKey

from replica.notary.note_signatures import signed_note
from replica.notary.parties import OFFICERS, PartyNote, encode_officers
from replica.notary.records import ActRecord, RegistrationRecord, encode_record
from tests.worlds.beginning import LEDGER
from tests.worlds.notary_logs import PARTY, Log, LogMaker

ANNA, BERT, EVE = (SigningKey(bytes([number]) * 32) for number in (1, 2, 3))


def raw(key: SigningKey) -> bytes:
    """A public key."""
    return bytes(key.verify_key)


def signed(note: PartyNote, key: SigningKey) -> PartyNote:
    """With this key's signature."""
    return signed_note(note, LEDGER, lambda message: key.sign(message).signature)


def officers_act(by: SigningKey, acts: int, *officers: SigningKey, name: str = OFFICERS) -> PartyNote:
    """An act about the officers, after so many others."""
    body = encode_officers(map(raw, officers))
    return signed(ActRecord(2, bytes(16), 0, 1, name, acts, body, "anna", "why", raw(by), bytes(64)), by)


def registration(by: SigningKey, before: int = 0) -> PartyNote:
    """Of some key, after so many others of it."""
    of = (PARTY, b"p" * 32, before, 0, 10**15, "anna", raw(by), bytes(64))
    return signed(RegistrationRecord(2, bytes(16), 0, 1, *of), by)


FINE = [registration(ANNA), officers_act(ANNA, 1, BERT), registration(BERT, 1)]


def log_of(notes: list[PartyNote]) -> Log:
    """A genesis that names ANNA, a barrier, then these notes."""
    maker = LogMaker()
    maker.genesis(raw(ANNA))
    maker.barrier(1)
    for number, note in enumerate(notes):
        placed = msgspec.structs.replace(note, activation_id=maker.activation_id, sequence=number)
        maker.raw(encode_record(placed))
    return maker.log
