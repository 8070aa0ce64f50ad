"""How far an audit has verified what never changes: records, signatures and completions up to an offset.

The next audit judges the whole log again, which is quick, and verifies one by one only what came since. The watermark
names the record it ends at, so that a log that was changed underneath is found.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from replica.notary.errors import ConfigError

VERSION = 1


class Watermark(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Verified without a finding up to and with `offset`, whose record has this SHA-256 (hexadecimal)."""

    version: int = VERSION
    topic_id: str
    offset: int
    digest: str
    ledger_offset: int = 0  # completions up to and with it are verified; 0: none
    verified_us: int = 0  # when, microseconds UTC


def load_watermark(path: Path) -> Watermark | None:
    """The watermark in a file, None if there is none. Raises ConfigError when the file is something else."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Watermark)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not an audit's watermark: {error}") from None
    if found.version != VERSION:
        raise ConfigError(f"{path} has version {found.version} of the watermark, this release knows {VERSION}")
    return found


def save_watermark(path: Path, watermark: Watermark) -> None:
    """Replace the file, all or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(watermark)) + b"\n")
    partial.replace(path)
