"""A file of parties and their keys, which `notary party import` registers in the log. Replicas do not read it.

A TOML file with one table, `parties`: the name in RFC 4514 form, and its Ed25519 public keys in hexadecimal, each for
ever or for a period. Keys are rotated by letting the periods of the old and the new one overlap.

    [parties]
    "O=Bank A,L=London,C=GB" = [
        {key = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a", until = 2027-02-01T00:00:00Z},
        {key = "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c", from = 2027-01-01T00:00:00Z},
    ]

"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from cryptography import x509

from replica.notary.errors import BadRequest, ConfigError
from replica.notary.parties import Pair, PeriodUs
from replica.notary.requests import PUBLIC_KEY_BYTES, TIME_MAX_US
from replica.notary.requests import check_party as check_party_name
from replica.notary.secret_files import check_trusted, open_not_for_others
from replica.notary.texts import bytes_from_hex, microseconds_of
from replica.notary.untrusted import parse_toml

PARTY_FILE = "parties.toml"  # of a local cluster, beside its configuration
KEYS_PER_PARTY_MAX = 100
ALWAYS: PeriodUs = (0, TIME_MAX_US)


def read_party_file(path: Path) -> dict[Pair, PeriodUs]:
    """All pairs of party and public key in a file, with their periods. Raises ConfigError."""
    try:
        check_trusted(path)
        tables = parse_toml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"the party file cannot be read: {error}") from None
    except ValueError as error:  # broken UTF-8 and broken TOML
        raise ConfigError(f"the party file {path} is no TOML file: {error}") from None
    parties = tables.get("parties")
    if not isinstance(parties, dict) or len(tables) != 1:
        raise ConfigError(f"the party file {path} has one table, [parties]")
    pairs: dict[Pair, PeriodUs] = {}
    for party, keys in parties.items():
        check_party(party)
        for key, period in _check_keys(path, party, keys):
            if pairs.setdefault((party, key), period) != period:
                raise ConfigError(f"the party {party!r} in {path} names key {key.hex()} with two periods")
    return pairs


def write_party_file(path: Path, parties: Mapping[str, Sequence[str]]) -> None:
    """Write such a file: party to public keys in hexadecimal. It is in place whole or not at all.

    Raises ConfigError, and writes nothing, when a name or a key is not right.
    """
    lines = ["# Party (RFC 4514) = its Ed25519 public keys, for `notary party import`.", "[parties]"]
    for party, keys in parties.items():
        hex_keys = [key.hex() for key, _ in _check_keys(path, check_party(party), list(keys))]
        lines.append(f"{json.dumps(party, ensure_ascii=False)} = {json.dumps(hex_keys)}")  # as TOML spells them, too
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with open_not_for_others(draft, "wb") as file:  # and not for them to write, whatever the umask
        file.write(("\n".join(lines) + "\n").encode())
    draft.replace(path)


def check_party(party: str) -> str:
    """The name, if it is an X.500 name in its one canonical spelling. Raises ConfigError."""
    try:
        canonical = x509.Name.from_rfc4514_string(party).rfc4514_string()
    except ValueError as error:
        raise ConfigError(f"{party!r} is no X.500 name in RFC 4514 form: {error}") from None
    if party != canonical:
        raise ConfigError(f"the party {party!r} is to be spelt {canonical!r}")
    try:
        check_party_name(party)  # by the same list of characters as requests, which no release of Python changes
    except BadRequest as error:
        raise ConfigError(f"the party {party!r}: {error.detail}") from None
    return party


def _check_keys(path: Path, party: str, keys: object) -> list[tuple[bytes, PeriodUs]]:
    if not isinstance(keys, list) or not 1 <= len(keys) <= KEYS_PER_PARTY_MAX:
        raise ConfigError(f"the party {party!r} in {path} has a list of 1 to {KEYS_PER_PARTY_MAX} keys")
    try:
        return [_check_key(key) for key in keys]
    except BadRequest as error:
        raise ConfigError(f"the party {party!r} in {path}: {error.detail}") from None


def _check_key(entry: object) -> tuple[bytes, PeriodUs]:
    if not isinstance(entry, dict):
        return bytes_from_hex("a public key", str(entry), PUBLIC_KEY_BYTES), ALWAYS
    unknown = entry.keys() - {"key", "from", "until"}
    if unknown:
        raise BadRequest(f"a key has `key`, `from` and `until`, not {', '.join(sorted(unknown))}")
    from_us = _time_us(entry["from"]) if "from" in entry else 0
    until_us = _time_us(entry["until"]) if "until" in entry else TIME_MAX_US
    if from_us >= until_us:
        raise BadRequest("a key's period starts before it ends")
    return bytes_from_hex("a public key", str(entry.get("key")), PUBLIC_KEY_BYTES), (from_us, until_us)


def _time_us(moment: object) -> int:
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        raise BadRequest("a key's period has times with a zone, such as 2027-01-01T00:00:00Z")
    return max(0, min(microseconds_of(moment), TIME_MAX_US))
