"""The committed-state index: what the log has decided, as keys and values. It is a cache that knows its position.

`replica.notary.rules` defines what keys and values mean. An index answers a look-up correctly or raises
IndexUnreadable: a read error is neither "spent" nor "unspent".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from replica.notary.position import Position

POSITION_KEY = b"m/position"


class Index(Protocol):
    """One replica's index. Every method raises IndexUnreadable when storage fails or is corrupt."""

    def position(self) -> Position | None:
        """The position up to which the log is applied; None for a new index."""

    def lookup(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The value of each key, None where there is none."""

    def write(self, entries: Mapping[bytes, bytes], position: Position) -> None:
        """Add entries and move the position: both or neither (one write batch).

        No key exists yet. The rules record each entry once, and it never changes.
        """

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        """All entries but the position, in key order."""

    def checkpoint(self, folder: Path) -> None:
        """Write a consistent copy, position included, into a folder that does not exist yet."""

    def close(self) -> None:
        """Close. May be repeated."""
