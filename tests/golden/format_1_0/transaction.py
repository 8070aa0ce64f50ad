"""Canonical bytes, owners, consents and tear-offs of docs/format-1.0.md."""

from __future__ import annotations

import hmac
import re
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import pairwise

from tests.golden.format_1_0.tree import root_of

NEVER = 2**63 - 1
ZEROS = bytes(32)
DERIVED = b"/derived"
"""The end of each derived id, and of no free one."""
STATES_LIMIT, OWNERS_MAX, ACT_AS_MAX, TEXT_MAX, ID_MAX, LISTED_MAX = 10_000, 256, 16, 512, 255, 16
_KEY_BYTES = {1: 32, 2: 33}
_REFUSED = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_INPUT, _REFERENCE, _OWNER, _WINDOW, _PARTY = 1, 2, 3, 4, 5


class NotCanonical(ValueError):
    """The bytes are none that docs/format-1.0.md allows."""


@dataclass(frozen=True)
class Owner:
    """That an output belongs to whoever has the keys of this owner, until `free_from_us`."""

    output: int
    owner: bytes
    free_from_us: int = NEVER


@dataclass(frozen=True)
class Transaction:
    """All fields that a party signs. `seed`: asks for a disclosure root; `nonce`: the id is derived from it."""

    ledger_id: bytes
    tx_id: bytes
    inputs: tuple[bytes, ...]
    party: str
    user_id: str
    command_id: str
    act_as: tuple[str, ...]
    references: tuple[bytes, ...] = ()
    owners: tuple[Owner, ...] = ()
    from_us: int | None = None
    until_us: int | None = None
    nonce: bytes | None = None
    deduplication: tuple[int, int] = (0, 0)
    seed: bytes | None = None


def encode(tx: Transaction) -> bytes:
    """The canonical bytes. Raises NotCanonical for values that have none."""
    raw = b"".join(
        (
            b"notary/request/3",
            tx.ledger_id,
            tx.tx_id,
            content_bytes(tx),
            tx.nonce or b"",
            _text(tx.party),
            _text(tx.user_id),
            _text(tx.command_id),
            len(tx.act_as).to_bytes(1, "big"),
            *map(_text, tx.act_as),
            tx.deduplication[0].to_bytes(1, "big") + tx.deduplication[1].to_bytes(8, "big"),
            b"\0" if tx.seed is None else b"\1" + tx.seed,
        )
    )
    _check(tx)
    return raw


def content_bytes(tx: Transaction) -> bytes:
    """What the content digest covers, without its tag."""
    counts = b"".join(len(group).to_bytes(2, "big") for group in (tx.inputs, tx.references, tx.owners))
    return counts + b"".join((*tx.inputs, *tx.references, *map(_owner_bytes, tx.owners))) + _window(tx)


def content_digest(tx: Transaction) -> bytes:
    """What an id stands for once it is notarised."""
    return sha256(b"notary/content/2" + content_bytes(tx)).digest()


def change_id(tx: Transaction) -> bytes:
    """What identifies the command."""
    return sha256(b"notary/command/1" + b"".join(map(_text, (tx.user_id, tx.command_id, *tx.act_as)))).digest()


def derived_id(tx: Transaction, nonce: bytes) -> Transaction:
    """The transaction with the id that follows from a nonce and the content."""
    return replace(tx, nonce=nonce, tx_id=sha256(b"notary/id/1" + nonce + content_digest(tx)).digest()[:24] + DERIVED)


def decode(raw: bytes) -> Transaction:
    """The fields of canonical bytes. Raises NotCanonical for any other bytes."""
    reader = _Reader(raw)
    if reader.take(16) != b"notary/request/3":
        raise NotCanonical("another tag")
    ledger_id, tx_id = reader.take(16), reader.take(32)
    inputs_n, references_n, owners_n = reader.number(2), reader.number(2), reader.number(2)
    inputs = tuple(reader.take(36) for _ in range(inputs_n))
    references = tuple(reader.take(36) for _ in range(references_n))
    owners = tuple(Owner(reader.number(4), reader.take(32), reader.number(8)) for _ in range(owners_n))
    flags, from_us, until_us = reader.number(1), reader.number(8), reader.number(8)
    nonce = reader.take(32) if tx_id.endswith(DERIVED) else None
    party, user_id, command_id = reader.text(), reader.text(), reader.text()
    act_as = tuple(reader.text() for _ in range(reader.number(1)))
    deduplication = (reader.number(1), reader.number(8))
    seed = reader.optional(32)
    tx = Transaction(
        ledger_id,
        tx_id,
        inputs,
        party,
        user_id,
        command_id,
        act_as,
        references,
        owners,
        from_us if flags & 1 else None,
        until_us if flags & 2 else None,
        nonce,
        deduplication,
        seed,
    )
    if encode(tx) != raw:
        raise NotCanonical("bytes follow, or a field has another form")
    return tx


def consent_bytes(tx: Transaction) -> bytes:
    """What an owner's key signs."""
    return b"notary/consent/1" + tx.ledger_id + tx.tx_id + content_digest(tx)


def opening(salt: bytes, threshold: int, keys: list[bytes]) -> bytes:
    """What shows an owner: `keys` as (type ‖ public key). Raises NotCanonical for values that no owner has."""
    listed = [key[:1] + len(key[1:]).to_bytes(1, "big") + key[1:] for key in keys]
    raw = salt + bytes([threshold, len(keys)]) + b"".join(listed)
    keys_of(raw)
    return raw


def owner_of(shown: bytes) -> bytes:
    """The owner that an opening shows."""
    return sha256(b"notary/owner/1" + shown).digest()


def keys_of(shown: bytes) -> tuple[int, list[bytes]]:
    """Threshold and keys of an opening. Raises NotCanonical."""
    reader = _Reader(shown)
    reader.take(16)
    threshold, count = reader.number(1), reader.number(1)
    keys = []
    for _ in range(count):
        kind, length = reader.number(1), reader.number(1)
        if _KEY_BYTES.get(kind) != length:
            raise NotCanonical("no key of this type has that length")
        keys.append(bytes([kind]) + reader.take(length))
    if not (reader.is_done and 1 <= threshold <= count <= LISTED_MAX) or not _ascend(keys):
        raise NotCanonical("no opening")
    return threshold, keys


def is_key(raw: object) -> bool:
    """Whether a value has the form of a key."""
    return isinstance(raw, bytes) and raw[:1] != b"" and _KEY_BYTES.get(raw[0]) == len(raw) - 1


def is_text(text: object, longest: int = TEXT_MAX) -> bool:
    """Whether a value is a text."""
    return isinstance(text, str) and 1 <= len(text.encode()) <= longest and not _REFUSED.search(text)


def parts(tx: Transaction, seed: bytes) -> list[bytes]:
    """The leaf hashes of all that can be shown, in their order."""
    shown = [
        *((_INPUT, at, one) for at, one in enumerate(tx.inputs)),
        *((_REFERENCE, at, one) for at, one in enumerate(tx.references)),
        *((_OWNER, at, _owner_bytes(one)) for at, one in enumerate(tx.owners)),
        (_WINDOW, 0, _window(tx)),
        (_PARTY, 0, tx.party.encode()),
    ]
    return [part(kind, at, part_nonce(seed, kind, at), raw) for kind, at, raw in shown]


def part_nonce(seed: bytes, kind: int, index: int) -> bytes:
    """The nonce of one part, which reveals no other."""
    return hmac.digest(seed, bytes([kind]) + index.to_bytes(4, "big"), "sha256")


def part(kind: int, index: int, nonce: bytes, raw: bytes) -> bytes:
    """The leaf hash of one part."""
    return sha256(b"\0" + bytes([kind]) + index.to_bytes(4, "big") + nonce + raw).digest()


def disclosure_root(tx: Transaction) -> bytes:
    """What a record has of the parts; zeros without a seed."""
    if tx.seed is None:
        return ZEROS
    leaves = parts(tx, tx.seed)
    return sha256(b"notary/parts/1" + len(leaves).to_bytes(4, "big") + root_of(leaves)).digest()


def _check(tx: Transaction) -> None:
    states = (*tx.inputs, *tx.references)
    kind, value = tx.deduplication
    wrong = (
        len(states) >= STATES_LIMIT or len(tx.owners) > OWNERS_MAX,
        any(len(state) != 36 for state in states) or len(tx.tx_id) != 32 or len(tx.ledger_id) != 16,
        not _ascend(tx.inputs) or not _ascend(tx.references) or len(set(states)) != len(states),
        any(state[:32] == tx.tx_id for state in states),
        not _ascend([one.output for one in tx.owners]),
        any(len(one.owner) != 32 or not 0 <= one.free_from_us <= NEVER for one in tx.owners),
        tx.from_us is not None and tx.until_us is not None and tx.from_us >= tx.until_us,
        any(end is not None and not 0 <= end <= NEVER for end in (tx.from_us, tx.until_us)),
        tx.seed is not None and len(tx.seed) != 32,
        tx.nonce is None and tx.tx_id.endswith(DERIVED),
        tx.nonce is not None and (len(tx.nonce) != 32 or derived_id(tx, tx.nonce).tx_id != tx.tx_id),
        not is_text(tx.party) or not is_text(tx.user_id, ID_MAX) or not is_text(tx.command_id, ID_MAX),
        not 1 <= len(tx.act_as) <= ACT_AS_MAX or not all(map(is_text, tx.act_as)),
        not _ascend([one.encode() for one in tx.act_as]),
        kind not in (0, 1, 2) or not 0 <= value <= NEVER or (kind == 0 and value != 0),
    )
    if any(wrong):
        raise NotCanonical(f"rule {wrong.index(True)} of the canonical bytes")


def _ascend(values: list[bytes] | list[int] | tuple[bytes, ...]) -> bool:
    return all(first < second for first, second in pairwise(values))  # type: ignore[operator]


def _window(tx: Transaction) -> bytes:
    flags = (tx.from_us is not None) + 2 * (tx.until_us is not None)
    return bytes([flags]) + (tx.from_us or 0).to_bytes(8, "big") + (tx.until_us or 0).to_bytes(8, "big")


def _owner_bytes(one: Owner) -> bytes:
    return one.output.to_bytes(4, "big") + one.owner + one.free_from_us.to_bytes(8, "big")


def _text(text: str) -> bytes:
    raw = text.encode()
    return len(raw).to_bytes(2, "big") + raw


class _Reader:
    def __init__(self, raw: bytes) -> None:
        self._raw, self._at = raw, 0

    @property
    def is_done(self) -> bool:
        return self._at == len(self._raw)

    def take(self, length: int) -> bytes:
        self._at += length
        if self._at > len(self._raw):
            raise NotCanonical("bytes are missing")
        return self._raw[self._at - length : self._at]

    def number(self, length: int) -> int:
        return int.from_bytes(self.take(length), "big")

    def optional(self, length: int) -> bytes | None:
        return self.take(length) if self.number(1) else None

    def text(self) -> str:
        try:
            return self.take(self.number(2)).decode()
        except UnicodeDecodeError as error:
            raise NotCanonical(str(error)) from None
