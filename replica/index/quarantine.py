"""A damaged index is moved aside and rebuilt from the log. That loses nothing, because an index is a cache.

A disk or memory that damages one index may damage the next, so at most QUARANTINED_MAX indexes are moved aside
automatically. After that a person must look at the machine, and delete the indexes that were moved aside.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import structlog

from replica.index.filtered import FilteredIndex
from replica.notary.errors import IndexDamaged, IndexDamagedAgain, IndexUnreadable

log = structlog.get_logger()

QUARANTINED_MAX = 2  # each takes as much disk space as before it was moved


def open_or_start_anew(folder: Path, at_us: int) -> FilteredIndex:
    """Open the index in `folder`. If it is damaged, move it aside and start a new one in its place.

    `at_us`: now, microseconds UTC. Raises IndexUnreadable when it cannot be opened for another reason, and
    IndexDamagedAgain when QUARANTINED_MAX of them are aside already.
    """
    try:
        return FilteredIndex(folder)
    except IndexDamaged as error:
        set_aside(folder, at_us, error)
    return FilteredIndex(folder)


def set_aside(folder: Path, at_us: int, error: IndexDamaged) -> None:
    """Move an index that was found damaged aside, and log it. It stays in place when this raises: IndexDamagedAgain, or
    IndexUnreadable when it cannot be moved."""
    before = quarantined(folder)
    if len(before) >= QUARANTINED_MAX:
        raise IndexDamagedAgain(
            f"{error.detail}; {len(before)} were moved aside before: {before[-1].name} is the newest"
        )
    try:
        moved = quarantine_index(folder, at_us)
    except OSError as why:
        raise IndexUnreadable(f"{error.detail}; it cannot be moved aside: {why}") from None
    log.error("index_quarantined", detail=error.detail, moved_to=str(moved))


def quarantined(folder: Path) -> list[Path]:
    """The indexes of this folder that were moved aside, oldest first."""
    return sorted(folder.parent.glob(f"{folder.name}.corrupt-*"))


def quarantine_index(folder: Path, at_us: int) -> Path:
    """Move a corrupt index aside for inspection, and return its new path. The next start rebuilds it from the log.

    `at_us`: microseconds UTC, part of the new name. Raises OSError, for instance when that name is taken.
    """
    stamp = datetime.fromtimestamp(at_us / 1e6, UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    return folder.rename(folder.with_name(f"{folder.name}.corrupt-{stamp}"))
