"""The public keys of the people who operate the notary, and whose they are.

They are in a TOML file, the same on every machine. A key that has ended stays in the file: older entries of the
operators' trail are verified by it.

    [[operators]]
    name = "anna"
    public_key = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    until = 2027-01-01T00:00:00Z    # left out while it signs
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from replica.notary.errors import BadRequest, ConfigError
from replica.notary.requests import PUBLIC_KEY_BYTES
from replica.notary.secret_files import check_trusted
from replica.notary.texts import Instant, bytes_from_hex
from replica.notary.untrusted import UNREADABLE, read_bounded

OPERATORS_MAX = 1_000  # keys in the file
_Name = Annotated[str, msgspec.Meta(pattern=r"^[!-~]([ -~]{0,62}[!-~])?\Z")]


class OperatorKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The key of a person. A person may have several, one after the other."""

    name: _Name
    public_key: str
    until: Instant | None = None


class _File(msgspec.Struct, forbid_unknown_fields=True):
    operators: list[OperatorKey]


def read_operators(path: Path) -> list[OperatorKey]:
    """The keys in a file, in its order. Raises ConfigError naming what is wrong with it."""
    try:
        check_trusted(path)
        keys = msgspec.toml.decode(read_bounded(path), type=_File).operators
        distinct = {bytes_from_hex("public_key", key.public_key, PUBLIC_KEY_BYTES) for key in keys}
    except OSError as error:
        raise ConfigError(f"the operators' keys {path} cannot be read: {error.strerror}") from None
    except UNREADABLE as error:
        raise ConfigError(f"{path}: {error}") from None
    except BadRequest as error:
        raise ConfigError(f"{path}: {error.detail}") from None
    if not 1 <= len(keys) <= OPERATORS_MAX or len(distinct) != len(keys):
        raise ConfigError(f"{path} names 1 to {OPERATORS_MAX} keys, each once: one key is one person's")
    if any(key.public_key != key.public_key.lower() for key in keys):
        raise ConfigError(f"{path}: keys are written in small letters")
    return keys
