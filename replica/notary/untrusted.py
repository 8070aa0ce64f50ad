"""Reads documents from untrusted sources: any bytes give a document, or one error of ours."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import msgspec

from replica.notary.errors import BadRequest

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What a decoder raises for bytes that are no document; the last one when they are nested too deep."""

FILE_MAX_BYTES = 64 * 2**20


def parse_toml(text: str) -> dict[str, Any]:
    """The tables of a TOML text. Raises ValueError, also when it is nested too deep."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def read_bounded(path: Path, max_bytes: int = FILE_MAX_BYTES) -> bytes:
    """A whole file. Raises OSError, and BadRequest when it is larger than a document of its kind can be."""
    with path.open("rb") as file:
        raw = file.read(max_bytes + 1)
    if len(raw) > max_bytes:
        raise BadRequest(f"{path} has more than {max_bytes:,} bytes")
    return raw
