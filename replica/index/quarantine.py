"""A damaged index is moved aside and made anew from the log: that loses nothing, because an index is a cache.

A disk or a memory that damages one index may damage the next, so this happens QUARANTINED_MAX times by itself. Then a
person must look, and deletes what was moved aside.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import structlog

from replica.index.rocks import RocksIndex
from replica.notary.errors import IndexDamaged, IndexDamagedAgain, IndexUnreadable

log = structlog.get_logger()

QUARANTINED_MAX = 2  # each takes as much of the disk as the index that it was


def open_or_start_anew(folder: Path, at_us: int) -> RocksIndex:
    """The index in `folder`; where that is damaged, a new one in its place, and the damaged one aside.

    `at_us`: now, microseconds UTC. Raises IndexUnreadable when it cannot be opened for another reason, and
    IndexDamagedAgain when enough of them lie aside already.
    """
    try:
        return RocksIndex(folder)
    except IndexDamaged as error:
        set_aside(folder, at_us, error)
    return RocksIndex(folder)


def set_aside(folder: Path, at_us: int, error: IndexDamaged) -> None:
    """Move an index that was found damaged aside, and tell. Raises what leaves it where it is: IndexDamagedAgain, and
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
    """Indexes of this folder that lie aside, oldest first."""
    return sorted(folder.parent.glob(f"{folder.name}.corrupt-*"))


def quarantine_index(folder: Path, at_us: int) -> Path:
    """Move a corrupt index aside, to be looked at; returns where to. The next start rebuilds it from the log.

    `at_us`: microseconds UTC, made part of the name. Raises OSError, for instance when that name is taken.
    """
    stamp = datetime.fromtimestamp(at_us / 1e6, UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    return folder.rename(folder.with_name(f"{folder.name}.corrupt-{stamp}"))
