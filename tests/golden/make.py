"""Writes golden files that are missing: `python -m tests.golden.make`. Never overwrites one.

A golden file that differs from what this release writes means that a persisted format has changed. That takes a new
format or version, announced as docs/formats.md requires, and a sample of its own; the old file stays.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.golden.samples import samples

FOLDER = Path(__file__).parent


class WouldOverwrite(Exception):
    """A golden file exists with other bytes."""


def make(folder: Path) -> list[str]:
    """Write what is missing; returns the paths written. Raises WouldOverwrite before anything is written."""
    wanted = samples()
    differing = [path for path, value in wanted.items() if _differs(folder / path, value)]
    if differing:
        raise WouldOverwrite(", ".join(differing))
    missing = [path for path in wanted if not (folder / path).exists()]
    for path in missing:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(wanted[path])
    return missing


def _differs(path: Path, value: bytes) -> bool:
    return path.exists() and path.read_bytes() != value


if __name__ == "__main__":
    try:
        written = make(FOLDER)
    except WouldOverwrite as error:
        sys.exit(f"refused: golden files are never overwritten, and these would change: {error}")
    print("\n".join(f"written: {path}" for path in written) or "nothing is missing")
