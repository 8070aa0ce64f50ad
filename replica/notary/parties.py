"""Registrations: which keys may sign for which parties, as the log has it. A function of the log's notes alone.

A registration has an effect if its operator's key is that of an officer in force, and if it names how many of its
party and key had an effect before: otherwise an old one, played again, would revive a revoked key, whether it had an
effect the first time or not. The newest one with an effect, below a request's own offset, decides whether the request's
key is in force. Signatures are no part of that: the active verifies them before it appends, and the audit afterwards,
as with those of requests (docs/decisions/0018).

No effect depends on a verdict. So a reader may know registrations further than it has judged: each entry ends in its
log offset, as all values of an index do, and later ones do not count.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from itertools import pairwise
from operator import itemgetter
from types import MappingProxyType
from typing import Annotated, NamedTuple

import msgspec

from replica.notary.counted import CountedNote
from replica.notary.genesis import OFFICERS_MAX, GenesisRecord
from replica.notary.records import FORMAT, ActRecord, NoteRecord, Record, RegistrationRecord, Undecodable, decode_record
from replica.notary.requests import PUBLIC_KEY_BYTES, PublicKey
from replica.notary.untrusted import UNREADABLE

OFFICERS = "officers"  # the name of the acts that say whose registrations have an effect
OFFICERS_KEY, PARTY_KEY = b"o", b"p"  # kinds of entry of an index
_ID_TAG = b"notary/party-key/1"
_VALUE = struct.Struct(f">{PUBLIC_KEY_BYTES}sQQQQ")


PartyNote = ActRecord | RegistrationRecord
"""What officers sign: an act about the officers, or a registration."""


Pair = tuple[str, bytes]
"""A party's name and a public key."""

PeriodUs = tuple[int, int]
"""In force in [from, until), microseconds UTC."""


class Differences(NamedTuple):
    """The pairs of a party file that the log has no registration of, and those that it has with another period."""

    missing: list[Pair]
    other: list[Pair]


class Officers(NamedTuple):
    """The officers in force, by their keys, and how many records about them had an effect, the genesis first; the next
    act names that. Without a genesis there are none."""

    acts: int = 0
    keys: frozenset[bytes] = frozenset()


class Registration(NamedTuple):
    """That a key is in force for a party in [from_us, until_us), by whose key, at which log offset. An empty period
    revokes the key. `number`: how many registrations of this party and key had an effect, this one included."""

    officer: bytes
    from_us: int
    until_us: int
    number: int
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


def registrations_in(value: bytes | None) -> int:
    """How many registrations of a party and key had an effect, by the newest of them in the index; None: none had."""
    return 0 if value is None else decode_registration(value).number


def entry_key_of(note: PartyNote, offset: int) -> bytes:
    """The key under which the index has a note with an effect."""
    at = offset.to_bytes(8, "big")
    return OFFICERS_KEY + at if isinstance(note, ActRecord) else _pair_of(note) + at


def pairs_of(notes: Iterable[CountedNote]) -> list[bytes]:
    """The `registration_id` of each party and key that these notes register, once."""
    records = [note.record for note in notes]
    return list(dict.fromkeys([_pair_of(one) for one in records if isinstance(one, RegistrationRecord)]))


def is_about_parties(record: Record) -> bool:
    """Whether a record says who is an officer, or which key may sign for a party."""
    return isinstance(record, RegistrationRecord) or (isinstance(record, ActRecord) and record.name == OFFICERS)


def entry_keys_of(notes: Iterable[CountedNote]) -> list[bytes]:
    """The keys that the index has of these notes, if all of them have an effect."""
    return [
        entry_key_of(note.record, note.offset)
        for note in notes
        if isinstance(note.record, PartyNote) and is_about_parties(note.record)
    ]


def in_force_after(
    officers: Officers,
    notes: Iterable[CountedNote],
    registered: Mapping[bytes, bytes],
    lost: Mapping[bytes, bytes] = MappingProxyType({}),
) -> tuple[Officers, dict[bytes, bytes]]:
    """The officers after these notes of the log, and the entries that the index gets of those with an effect. The order
    is the log's.

    `officers` are those in force before the first note; `registered` has the newest value before it of each of
    `pairs_of` that has one. `lost`: what lost records between the notes gave the index, which is returned as well.
    """
    walk = _Walk(officers, dict(registered), {})
    steps = [(note.offset, partial(walk.note, note.record, note.offset)) for note in notes]
    steps += [(_offset_in(value), partial(walk.lost, key, value)) for key, value in lost.items()]
    for _, step in sorted(steps, key=itemgetter(0)):
        step()
    return walk.officers, walk.added


@dataclass(slots=True)
class _Walk:
    """Who may register, what is registered, and what the index gets, note by note."""

    officers: Officers
    registered: dict[bytes, bytes]
    added: dict[bytes, bytes]

    def note(self, record: GenesisRecord | NoteRecord, offset: int) -> None:
        at = offset.to_bytes(8, "big")
        if isinstance(record, GenesisRecord):
            self._name(Officers(1, frozenset(record.officers)), at)
        elif isinstance(record, ActRecord) and record.name == OFFICERS:
            if (after := _officers_after(self.officers, record)) is not None:
                self._name(after, at)
        elif isinstance(record, RegistrationRecord) and record.public_key in self.officers.keys:
            pair = _pair_of(record)
            before = registrations_in(self.registered.get(pair))
            if follows_on(record, before):
                value = _VALUE.pack(record.public_key, record.from_us, record.until_us, before + 1, offset)
                self.registered[pair] = self.added[pair + at] = value

    def _name(self, officers: Officers, at: bytes) -> None:
        self.officers = officers
        self.added[OFFICERS_KEY + at] = officers.acts.to_bytes(8, "big") + encode_officers(officers.keys) + at

    def lost(self, key: bytes, value: bytes) -> None:
        self.added[key] = value
        if key[:1] == OFFICERS_KEY:
            self.officers = decode_officers_entry(value)
        else:
            self.registered[key[:-8]] = value


def follows_on(note: RegistrationRecord, before: int) -> bool:
    """Whether a registration was signed by who knew of all before: so many of its party and key had an effect."""
    return note.before == before


def decode_party_note(value: bytes) -> PartyNote:
    """An act about the officers, or a registration, from the bytes of its record. Raises Undecodable for any other."""
    record = decode_record(value, FORMAT)
    if isinstance(record, RegistrationRecord) or (isinstance(record, ActRecord) and record.name == OFFICERS):
        return record
    raise Undecodable("neither an act about the officers nor a registration")


def may_sign(note: PartyNote, officers: Officers) -> bool:
    """Whether the note's key is that of an officer in force."""
    return note.public_key in officers.keys


def why_no_effect(note: PartyNote, officers: Officers, newest: bytes | None) -> str | None:
    """Why a note would have no effect if it came next in the log; None if it would have one.

    `officers` are those in force; `newest` is the index's newest value of a registration's party and key.
    """
    key, in_log = note.public_key.hex(), officers.acts
    if isinstance(note, RegistrationRecord):
        in_log = registrations_in(newest)
        known, of = note.before, "registrations of this key"
    else:
        if decode_officers(note.body) is None:
            return "it names no list of officers"
        known, of = note.replaces, "acts about officers"
    if known != in_log:
        return f"it follows on {known} {of}, and the log has {in_log}: look, and sign anew"
    return None if may_sign(note, officers) else f"{key} is no officer's key"


def why_not_together(notes: Sequence[PartyNote]) -> str | None:
    """Why one of these notes would take away the effect of a later one; None if none would.

    Each note of a call is looked at as if it came next: what those before it in the same call change is not seen.
    """
    if len(notes) > 1 and not all(isinstance(note, RegistrationRecord) for note in notes):
        return "an act about officers comes alone: what is sent with it is judged by the list that it replaces"
    pairs = [_pair_of(note) for note in notes if isinstance(note, RegistrationRecord)]
    return None if len(set(pairs)) == len(pairs) else "one key is registered twice: send the second one after the first"


def differences(file: Mapping[Pair, PeriodUs], in_log: Mapping[Pair, PeriodUs], now_us: int) -> Differences:
    """What a party file says otherwise than the newest registrations. Beginnings before now are as good as each
    other, because a registration never begins earlier than it is signed."""

    def agrees(pair: Pair) -> bool:
        (from_us, until_us), (file_from_us, file_until_us) = in_log[pair], file[pair]
        return max(from_us, now_us) == max(file_from_us, now_us) and until_us == file_until_us

    known = [pair for pair in file if pair in in_log]
    return Differences([pair for pair in file if pair not in in_log], [pair for pair in known if not agrees(pair)])


def _pair_of(note: RegistrationRecord) -> bytes:
    return registration_id(note.party, note.party_key)


def _offset_in(value: bytes) -> int:
    return int.from_bytes(value[-8:], "big")


def _officers_after(officers: Officers, act: ActRecord) -> Officers | None:
    """Only an officer replaces the officers, who knew of all acts before. None: it has no effect, and is not counted,
    so that nobody but an officer uses up a number that an officer signed."""
    named = decode_officers(act.body)
    if named is None or act.replaces != officers.acts or not may_sign(act, officers):
        return None
    return Officers(officers.acts + 1, named)
