"""The operators' trail: who did what to the participant, when and why. Pure.

An entry is one line of JSON in ASCII, with the SHA-256 of the line before and a signature. So nobody without a key can
add an entry, and nobody at all can change, move or leave out one that has a successor. Who deletes the newest lines is
found by whoever remembers a newer head: each replica does, and every export.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Annotated, Literal

import msgspec

from replica.notary.codes import Code
from replica.notary.errors import BadRequest, ConfigError, NotaryError
from replica.notary.requests import DIGEST_BYTES, SIGNATURE_BYTES
from replica.notary.signatures import notary_key_from_hex, notary_signature_holds
from replica.notary.texts import Instant, bytes_from_hex
from replica.notary.untrusted import UNREADABLE

LINE_MAX_BYTES = 4_000  # a VARCHAR2 of Oracle holds no more, an operators' word in the log a little more
REASON_MAX = 200  # characters
DETAILS_MAX = 16
DETAIL_MAX = 200  # characters of one argument
TAG = b"notary/trail/1\n"  # no other statement that a key of ours signs begins so
BEFORE_THE_FIRST = bytes(DIGEST_BYTES).hex()
_CUT = "..."

Phase = Literal["begun", "done", "failed", "proposed", "recorded"]
Number = Annotated[int, msgspec.Meta(ge=1, le=2**53)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
_Reason = Annotated[str, msgspec.Meta(max_length=REASON_MAX)]


class TrailBroken(NotaryError):
    """The trail is not what it was, or was never signed by those who may: a person must look."""

    default_code = Code.TRAIL_BROKEN


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One act of an operator, or one stage of it. `at`: by the clock of the machine that wrote it.

    `operator`: whose key signed, or the OS user where the notary's key did (`signer`). `of`: the entry that this one
    ends; of a begun act, the proposal that it confirms.
    """

    number: Number
    previous: str
    at: Instant
    cluster: _Name
    act: _Name
    phase: Phase
    operator: _Name
    os_user: _Name
    host: _Name
    signer: Literal["operator", "notary"]
    key: str
    signature: str = ""
    of: Number | None = None
    reason: _Reason = ""
    details: Annotated[dict[str, str], msgspec.Meta(max_length=DETAILS_MAX)] = {}
    outcome: str = ""


@dataclass(frozen=True, slots=True)
class Head:
    """The newest entry that somebody knows: its number, and the digest of its line. Number 0: the trail is empty."""

    number: int = 0
    digest: str = BEFORE_THE_FIRST

    def __str__(self) -> str:
        return f"{self.number}:{self.digest}"


@dataclass(frozen=True, slots=True)
class Broken:
    """The first line that does not follow on the one before it, and why."""

    number: int
    why: str

    def __str__(self) -> str:
        return f"entry {self.number} {self.why}"


@dataclass(frozen=True, slots=True)
class Followed:
    """What lines say from a head on, as far as they follow. `broken`: why they end there; None: they are whole."""

    entries: tuple[Entry, ...]
    head: Head
    broken: Broken | None = None


@dataclass(frozen=True, slots=True)
class Signatory:
    """Whose key this is. `name`: None for one of the notary's. `until`: when it ended; None while it may sign."""

    name: str | None
    until: datetime | None = None


Signatories = Mapping[str, Signatory]
"""By public key, in hexadecimal."""


def check_reason(text: str) -> str:
    """The reason as it goes into the trail. Raises ConfigError unless it is one short line."""
    found = text.strip()
    if len(found) > REASON_MAX or not found.isprintable():
        raise ConfigError(f"--reason is one line of at most {REASON_MAX} characters")
    return found


def parse_head(text: str) -> Head:
    """A head from `NUMBER:DIGEST`, as an export prints it. Raises ConfigError."""
    number, _, digest = text.strip().partition(":")
    try:
        bytes_from_hex("digest", digest, DIGEST_BYTES)
        if not (number.isascii() and number.isdigit() and len(number) <= 16) or digest != digest.lower():
            raise BadRequest("number")
    except BadRequest:
        raise ConfigError(f"{text[:100]!r} is no cursor: NUMBER:DIGEST, as notary trail export prints it") from None
    if (int(number) == 0) != (digest == BEFORE_THE_FIRST):
        raise ConfigError("a cursor of number 0 has 64 zeros, and no other one has")
    return Head(int(number), digest)


def encode_entry(entry: Entry) -> bytes:
    """The line of an entry, without its newline. ASCII, so every database and terminal leaves it as it is."""
    return json.dumps(msgspec.to_builtins(entry), ensure_ascii=True, separators=(",", ":")).encode()


def signed_line(entry: Entry, sign: Callable[[bytes], bytes]) -> bytes:
    """The line of an entry with its signature. `sign` is of the private key to the entry's `key`.

    A long outcome is cut. Raises ConfigError where what was asked for is itself too long.
    """
    room = LINE_MAX_BYTES - 2 * SIGNATURE_BYTES - len(',"signature":""')
    while len(encode_entry(entry)) > room:
        if len(entry.outcome) <= len(_CUT):
            raise ConfigError("the arguments are too long for the operators' trail")
        entry = msgspec.structs.replace(entry, outcome=entry.outcome[: len(entry.outcome) // 2] + _CUT)
    return encode_entry(msgspec.structs.replace(entry, signature=sign(statement(entry)).hex()))


def statement(entry: Entry) -> bytes:
    """The bytes that are signed: a tag, and the line without its signature."""
    return TAG + encode_entry(msgspec.structs.replace(entry, signature=""))


def digest_of(line: bytes) -> str:
    """What the next entry has as `previous`."""
    return sha256(line).hexdigest()


def head_of(line: bytes | None) -> Head:
    """The head that a trail's newest line makes; None: the trail is empty. Raises TrailBroken."""
    if line is None:
        return Head()
    entry = _decode(line)
    if entry is None:
        raise TrailBroken("its newest line is no entry")
    return Head(entry.number, digest_of(line))


def head_before(lines: Sequence[bytes]) -> Head:
    """The head that the first of these lines follows on, by its own word. Raises TrailBroken."""
    if not lines:
        return Head()
    first = _decode(lines[0])
    if first is None:
        raise TrailBroken("the first line is no entry")
    return Head(first.number - 1, first.previous)


def follow(lines: Iterable[bytes], head: Head = Head(), known: Signatories | None = None) -> Followed:
    """What these lines say after `head`, as far as each follows on the one before and is signed.

    `known`: whose signatures count; None: that each is of the key which its entry names, whoever has that.
    """
    entries: list[Entry] = []
    for line in lines:
        entry = _decode(line)
        why = "is no entry in its one spelling" if entry is None else _why_not(entry, head, known)
        if entry is None or why:
            return Followed(tuple(entries), head, Broken(head.number + 1, why))
        entries.append(entry)
        head = Head(entry.number, digest_of(line))
    return Followed(tuple(entries), head)


def still_has(line: bytes | None, head: Head) -> Broken | None:
    """Whether the trail's line with the head's number is the one that somebody remembers; None: it is."""
    if head.number == 0:
        return None
    if line is None:
        return Broken(head.number, "is gone, with all that came after it")
    return None if digest_of(line) == head.digest else Broken(head.number, "is another one than it was")


def _decode(line: bytes) -> Entry | None:
    try:
        entry = _decoder.decode(line) if len(line) <= LINE_MAX_BYTES else None
    except UNREADABLE:
        return None
    return entry if entry is not None and encode_entry(entry) == line else None


def _why_not(entry: Entry, head: Head, known: Signatories | None) -> str:
    """Why an entry does not follow on a head; empty if it does."""
    if entry.number != head.number + 1:
        return f"is missing: {entry.number} comes after {head.number}"
    if entry.previous != head.digest:
        return "does not name the digest of the line before"
    if entry.of is not None and entry.of >= entry.number:
        return "refers to a later one"
    if not _holds(entry):
        return "has a signature that does not hold"
    return "" if known is None else _why_not_known(entry, known.get(entry.key))


def _why_not_known(entry: Entry, whose: Signatory | None) -> str:
    if whose is None:
        return f"is signed by a key that is nobody's here: {entry.key}"
    if entry.signer != ("notary" if whose.name is None else "operator"):
        return "is signed by a key of another kind than it says"
    if whose.name is not None and whose.name != entry.operator:
        return f"names {entry.operator}, and the key is {whose.name}'s"
    return "was written after its key had ended" if whose.until is not None and entry.at >= whose.until else ""


def _holds(entry: Entry) -> bool:
    try:
        key = notary_key_from_hex("key", entry.key)
        signature = bytes_from_hex("signature", entry.signature, SIGNATURE_BYTES)
    except BadRequest:
        return False
    return notary_signature_holds(key, statement(entry), signature)


_decoder = msgspec.json.Decoder(Entry)
