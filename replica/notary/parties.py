"""Registrations: which keys may sign for which parties, as the log has it. A function of the log's notes alone.

A registration has an effect if its operator's key is that of an officer in force. The newest one with an effect, below
a request's own offset, decides whether the request's key is in force. What was signed has an effect once: otherwise an
old registration, played again, would revive a revoked key. Signatures are no part of that: the active
verifies them before it appends, and the audit afterwards, as with those of requests (docs/decisions/0018).

No effect depends on a verdict. So a reader may know registrations further than it has judged: each entry ends in its
log offset, as all values of an index do, and later ones do not count.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from itertools import groupby, pairwise
from operator import attrgetter
from typing import Annotated, NamedTuple

import msgspec

from replica.notary.counted import CountedNote
from replica.notary.note_signatures import note_digest
from replica.notary.records import FORMAT, ActRecord, Record, RegistrationRecord, Undecodable, decode_record
from replica.notary.requests import PUBLIC_KEY_BYTES, PublicKey
from replica.notary.untrusted import UNREADABLE

OFFICERS = "officers"  # the name of the acts that say whose registrations have an effect
OFFICERS_MAX = 100
OFFICERS_KEY, PARTY_KEY, SIGNED_KEY = b"o", b"p", b"r"  # kinds of entry of an index
_ID_TAG = b"notary/party-key/1"
_VALUE = struct.Struct(f">{PUBLIC_KEY_BYTES}sQQQ")


PartyNote = ActRecord | RegistrationRecord
"""What officers sign: an act about the officers, or a registration."""


Pair = tuple[str, bytes]
"""A party's name and a public key."""

PeriodUs = tuple[int, int]
"""In force in [from, until), microseconds UTC."""


class Differences(NamedTuple):
    """The pairs of a registry file that the log has no registration of, and those that it has with another period."""

    missing: list[Pair]
    other: list[Pair]


class Officers(NamedTuple):
    """The officers in force, by their keys, and the number of acts about them so far; each names that number."""

    acts: int = 0
    keys: frozenset[bytes] = frozenset()


class Registration(NamedTuple):
    """That a key is in force for a party in [from_us, until_us), by whose key, at which log offset. An empty period
    revokes the key."""

    officer: bytes
    from_us: int
    until_us: int
    offset: int


class _Body(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The body of an act about the officers: a version, and their keys, ascending."""

    version: Annotated[int, msgspec.Meta(ge=1, le=1)]
    keys: Annotated[tuple[PublicKey, ...], msgspec.Meta(min_length=1, max_length=OFFICERS_MAX)]


_body_encoder = msgspec.msgpack.Encoder()
_body_decoder = msgspec.msgpack.Decoder(_Body)


def encode_officers(keys: Iterable[bytes]) -> bytes:
    """The body of an act that puts these officers in force in place of those before. Public keys, 32 bytes each."""
    return _body_encoder.encode(_Body(1, tuple(sorted(set(keys)))))


def decode_officers(body: bytes) -> frozenset[bytes] | None:
    """The keys in a body that `encode_officers` could have made; None for any other."""
    try:
        keys = _body_decoder.decode(body).keys
    except UNREADABLE:
        return None
    if encode_officers(keys) != body or any(first >= second for first, second in pairwise(keys)):
        return None
    return frozenset(keys)


def decode_officers_entry(value: bytes) -> Officers:
    """The officers in a value of the index."""
    return Officers(int.from_bytes(value[:8], "big"), decode_officers(value[8:-8]) or frozenset())


def registration_id(party: str, public_key: bytes) -> bytes:
    """What the registrations of one key of one party have in common: the first 33 bytes of their keys in the index."""
    name = party.encode()
    return PARTY_KEY + sha256(_ID_TAG + len(name).to_bytes(2, "big") + name + public_key).digest()


def decode_registration(value: bytes) -> Registration:
    """The registration in a value of the index."""
    return Registration(*_VALUE.unpack(value))


def signed_key_of(note: RegistrationRecord) -> bytes:
    """The key of the index that tells whether what was signed for a registration had an effect."""
    return SIGNED_KEY + note_digest(note)


def entry_key_of(note: PartyNote, offset: int) -> bytes:
    """The key under which the index has a note with an effect; that of `signed_key_of` apart."""
    at = offset.to_bytes(8, "big")
    return OFFICERS_KEY + at if isinstance(note, ActRecord) else registration_id(note.party, note.party_key) + at


def signed_keys_of(notes: Iterable[CountedNote]) -> list[bytes]:
    """The keys of the index that tell which of these notes' registrations had an effect before."""
    return [signed_key_of(note.record) for note in notes if isinstance(note.record, RegistrationRecord)]


def is_about_parties(record: Record) -> bool:
    """Whether a record says who is an officer, or which key may sign for a party."""
    return isinstance(record, RegistrationRecord) or (isinstance(record, ActRecord) and record.name == OFFICERS)


def entry_keys_of(notes: Iterable[CountedNote]) -> list[bytes]:
    """The keys that the index has of these notes, if all of them have an effect; those of `signed_keys_of` apart."""
    return [
        entry_key_of(note.record, note.offset)
        for note in notes
        if isinstance(note.record, ActRecord | RegistrationRecord) and is_about_parties(note.record)
    ]


def in_force_after(
    officers: Officers, notes: Iterable[CountedNote], known: Mapping[bytes, bytes]
) -> tuple[Officers, dict[bytes, bytes]]:
    """The officers after these notes of the log, and the entries that the index gets from them. The order is the log's.
    Each act about the officers gives an entry as well, so that an index knows the officers at its position.

    `officers` are those in force before the first note. `known` has the index's values of `signed_keys_of` the notes,
    as far as there are any. The index may be newer than the notes.
    """
    added: dict[bytes, bytes] = {}
    for note in notes:
        record = note.record
        if isinstance(record, ActRecord) and record.name == OFFICERS:
            officers, at = _officers_after(officers, record), note.offset.to_bytes(8, "big")
            body = encode_officers(officers.keys) if officers.keys else b""
            added[OFFICERS_KEY + at] = officers.acts.to_bytes(8, "big") + body + at
        elif isinstance(record, RegistrationRecord) and record.public_key in officers.keys:
            at = note.offset.to_bytes(8, "big")
            signed = signed_key_of(record)
            if min(added.get(signed, at), known.get(signed, at)) < at:  # played again, perhaps after its revocation
                continue
            added[signed] = at
            value = _VALUE.pack(record.public_key, record.from_us, record.until_us, note.offset)
            added[registration_id(record.party, record.party_key) + at] = value
    return officers, added


def in_force_through(
    officers: Officers, notes: Iterable[CountedNote], lost: Mapping[bytes, bytes], known: Mapping[bytes, bytes]
) -> tuple[Officers, dict[bytes, bytes]]:
    """As `in_force_after`, where `lost` records between the notes have given these entries; they are among those that
    the index gets."""
    added: dict[bytes, bytes] = {}
    left = sorted(notes, key=attrgetter("offset"))
    for offset, entries in groupby(sorted(lost.items(), key=_recorded_at), _recorded_at):
        before = [note for note in left if note.offset < offset]
        left = left[len(before) :]
        officers, more = in_force_after(officers, before, {**known, **added})
        added |= more
        for key, value in entries:
            added[key] = value
            officers = decode_officers_entry(value) if key[:1] == OFFICERS_KEY else officers
    officers, more = in_force_after(officers, left, {**known, **added})
    return officers, added | more


def decode_party_note(value: bytes) -> PartyNote:
    """An act about the officers, or a registration, from the bytes of its record. Raises Undecodable for any other."""
    record = decode_record(value, FORMAT)
    if isinstance(record, RegistrationRecord) or (isinstance(record, ActRecord) and record.name == OFFICERS):
        return record
    raise Undecodable("neither an act about the officers nor a registration")


def may_sign(note: PartyNote, officers: Officers) -> bool:
    """Whether the note's key is that of an officer in force. The first officers name themselves."""
    named = decode_officers(note.body) if isinstance(note, ActRecord) and note.name == OFFICERS else None
    return note.public_key in (officers.keys or named or frozenset())


def why_no_effect(note: PartyNote, officers: Officers, known: Mapping[bytes, bytes]) -> str | None:
    """Why a note would have no effect if it came next in the log; None if it would have one.

    `officers` are those in force. `known` has the index's value of `signed_key_of` a registration, if there is one.
    """
    key = note.public_key.hex()
    if isinstance(note, RegistrationRecord):
        if note.public_key not in officers.keys:
            return f"{key} is no officer's key" if officers.keys else "no officers are in force: notary party officers"
        before = known.get(signed_key_of(note))
        return (
            None if before is None else f"what was signed had its effect at log offset {_offset_in(before)}: sign anew"
        )
    named = decode_officers(note.body)
    if named is None:
        return "it names no list of officers"
    if note.replaces != officers.acts:
        return (
            f"it follows on {note.replaces} acts about officers, and the log has {officers.acts}: look, and sign anew"
        )
    if not may_sign(note, officers):
        return (
            f"{key} is no officer's key"
            if officers.keys
            else f"{key} is not on the list: the first officers name themselves"
        )
    return None


def why_not_together(notes: Sequence[PartyNote]) -> str | None:
    """Why one of these notes would take away the effect of a later one; None if none would.

    Each note of a call is looked at as if it came next: what those before it in the same call change is not seen.
    """
    if len(notes) > 1 and not all(isinstance(note, RegistrationRecord) for note in notes):
        return "an act about officers comes alone: what is sent with it is judged by the list that it replaces"
    signed = [signed_key_of(note) for note in notes if isinstance(note, RegistrationRecord)]
    return None if len(set(signed)) == len(signed) else "the same registration is sent twice: send it once"


def has_effect(note: PartyNote, value: bytes | None) -> bool:
    """Whether a note of the log had an effect, by the index's value of its `entry_key_of`."""
    if value is None or isinstance(note, RegistrationRecord):
        return value is not None
    return decode_officers_entry(value).keys == decode_officers(note.body)


def differences(file: Mapping[Pair, PeriodUs], in_log: Mapping[Pair, PeriodUs], now_us: int) -> Differences:
    """What a registry file says otherwise than the newest registrations. Beginnings before now are as good as each
    other, because a registration never begins earlier than it is signed."""

    def agrees(pair: Pair) -> bool:
        (from_us, until_us), (file_from_us, file_until_us) = in_log[pair], file[pair]
        return max(from_us, now_us) == max(file_from_us, now_us) and until_us == file_until_us

    known = [pair for pair in file if pair in in_log]
    return Differences([pair for pair in file if pair not in in_log], [pair for pair in known if not agrees(pair)])


def _recorded_at(entry: tuple[bytes, bytes]) -> int:
    return _offset_in(entry[1])


def _offset_in(value: bytes) -> int:
    return int.from_bytes(value[-8:], "big")


def _officers_after(officers: Officers, act: ActRecord) -> Officers:
    """Only an officer replaces the officers, once all acts before are known. The first ones name themselves."""
    acts = officers.acts + 1
    named = decode_officers(act.body)
    if named is None or act.replaces != officers.acts or not may_sign(act, officers):
        return Officers(acts, officers.keys)
    return Officers(acts, named)
