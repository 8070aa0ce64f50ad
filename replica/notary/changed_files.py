"""Whether files have changed, so that a process notices a renewed certificate or key without a signal."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

CHANGES_LOOK_S = 60.0
Seen: TypeAlias = tuple[tuple[int, ...] | None, ...]


def seen(files: Sequence[Path]) -> Seen:
    """What tells whether files are others than before, behind links as well; None: there is no such file."""
    return tuple(_seen(path) for path in files)


def _seen(path: Path) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
