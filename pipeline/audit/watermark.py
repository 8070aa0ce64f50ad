"""How far an audit has verified what never changes: records, signatures and completions up to an offset.

The next audit judges the whole log again, which is quick, and verifies only newer records one by one. The watermark
names its last record, so that a changed log is found. It has a checksum, so that a damaged file does not make an audit
skip records that were never verified.
"""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

import msgspec

from replica.notary.errors import ConfigError
from replica.notary.untrusted import UNREADABLE

VERSION = 2


class Watermark(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Verified without a finding up to and with `offset`, whose record has this SHA-256 (hexadecimal)."""

    version: int = VERSION
    topic_id: str
    offset: int
    digest: str
    ledger_offset: int = 0  # completions up to and with it are verified; 0: none
    verified_us: int = 0  # when, microseconds UTC
    checksum: str = ""  # SHA-256 of the other fields, hexadecimal; set when it is saved


def load_watermark(path: Path) -> Watermark | None:
    """The watermark in a file, None if there is none. Raises ConfigError when the file is something else."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Watermark)
    except FileNotFoundError:
        return None
    except UNREADABLE as error:
        raise ConfigError(f"{path} is not an audit's watermark: {error}") from None
    if found.version != VERSION:
        raise ConfigError(f"{path} has version {found.version} of the watermark, this release knows {VERSION}")
    if found.checksum != _checksum(found):
        raise ConfigError(f"{path} is damaged; delete it, and the next audit verifies everything again")
    return msgspec.structs.replace(found, checksum="")


def _checksum(watermark: Watermark) -> str:
    return sha256(msgspec.json.encode(msgspec.structs.replace(watermark, checksum=""))).hexdigest()


def save_watermark(path: Path, watermark: Watermark) -> None:
    """Replace the file, all or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    newest = msgspec.structs.replace(watermark, version=VERSION)
    summed = msgspec.structs.replace(newest, checksum=_checksum(newest))
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(summed)) + b"\n")
    partial.replace(path)
