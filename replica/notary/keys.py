"""The notary's public keys, old ones included. A receipt names the key that signed it, and outlives a rotation.

They are in a TOML file, the same for every replica and every verifier. The periods are for people: receipts have no
date. A key whose private half has leaked must be taken out of the file, because it could sign receipts for any time.

    [[keys]]
    public_key = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    from = 2026-01-01T00:00:00Z
    until = 2027-01-01T00:00:00Z    # left out while it signs
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import msgspec

from replica.notary.errors import BadRequest, ConfigError
from replica.notary.signatures import notary_key_from_hex
from replica.notary.texts import Instant
from replica.notary.untrusted import UNREADABLE, read_bounded

KEYS_MAX = 1_000
KEYS_NAME = "notary-keys.toml"  # beside the key, unless the configuration names another


class NotaryKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One public key of the notary, and the period in which it signed: for people, as receipts have no date."""

    public_key: str
    from_: Instant | None = msgspec.field(default=None, name="from")
    until: Instant | None = None

    @property
    def raw(self) -> bytes:
        """The bytes of the key: 32 of Ed25519, 65 of ECDSA P-256. Raises BadRequest."""
        return notary_key_from_hex("public_key", self.public_key)


class _File(msgspec.Struct, forbid_unknown_fields=True):
    keys: list[NotaryKey]


def read_keys(path: Path) -> list[NotaryKey]:
    """The keys in a file, in its order. Raises ConfigError naming what is wrong with it."""
    try:
        keys = msgspec.toml.decode(read_bounded(path), type=_File).keys
        distinct = {key.raw for key in keys}
    except OSError as error:
        raise ConfigError(f"the notary's keys {path} cannot be read: {error.strerror}") from None
    except UNREADABLE as error:
        raise ConfigError(f"{path}: {error}") from None
    except BadRequest as error:
        raise ConfigError(f"{path}: {error.detail}") from None
    if not 1 <= len(keys) <= KEYS_MAX or len(distinct) != len(keys):
        raise ConfigError(f"{path} names 1 to {KEYS_MAX} keys, each once")
    return keys


def write_keys(path: Path, keys: Sequence[NotaryKey]) -> None:
    """Write the file atomically."""
    lines = ["# The notary's public keys, old ones too: receipts of all of them verify."]
    for key in keys:
        lines += ["", "[[keys]]", f'public_key = "{key.public_key}"']
        lines += [f"{name} = {at:%Y-%m-%dT%H:%M:%SZ}" for name, at in (("from", key.from_), ("until", key.until)) if at]
    draft = path.with_name(f".{path.name}.new")
    draft.write_text("\n".join(lines) + "\n")
    draft.replace(path)


def known_keys(path: Path | None, signing: bytes) -> list[NotaryKey]:
    """The keys that verify: those of the file, else the one that signs. Raises ConfigError when that is not in it."""
    if path is None:
        return [NotaryKey(signing.hex())]
    keys = read_keys(path)
    if signing not in {key.raw for key in keys}:
        raise ConfigError(f"the notary's key {signing.hex()} is not in {path}: nobody could verify its receipts")
    return keys


def ended_at(keys: Sequence[NotaryKey], signing: bytes, now: datetime) -> datetime | None:
    """When the signing key's period ended; None while it may sign. Periods are for people and cause no refusal."""
    until = next((key.until for key in keys if key.raw == signing), None)
    return until if until is not None and until <= now else None


def rotated(keys: Sequence[NotaryKey], old: bytes, new: bytes, now: datetime) -> list[NotaryKey]:
    """The keys once `new` signs instead of `old`. Raises ConfigError when `new` is in the list already."""
    if new in {key.raw for key in keys}:
        raise ConfigError(f"{new.hex()} is a key of the notary's already")
    known = list(keys) if any(key.raw == old for key in keys) else [*keys, NotaryKey(old.hex())]
    ended = [msgspec.structs.replace(key, until=now) if key.raw == old else key for key in known]
    return [*ended, NotaryKey(new.hex(), now)]
