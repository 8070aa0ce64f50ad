"""The committed-state index: what the log has decided, as keys and values. It is a cache that knows its position.

The first byte of a key is its kind: states and transactions (`replica.notary.rules`), acceptances of commands
(`replica.notary.acceptances`), officers and registrations (`replica.notary.parties`). Every value ends in the log
offset at which it was recorded. An index answers a look-up correctly or raises IndexUnreadable: a read error is neither
"spent" nor "unspent".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from replica.notary.position import Position

POSITION_KEY = b"\x00"  # the number of entries, and the position; it sorts before every kind
BEFORE_KEY = b"\x01"  # the same as they were before the newest batch
OFFSET_END = 2**64 - 1  # above every log offset

NOTHING: Mapping[bytes, bytes] = MappingProxyType({})


class Index(Protocol):
    """One replica's index. Every method raises IndexUnreadable when storage fails or is corrupt."""

    def position(self) -> Position | None:
        """The position up to which the log is applied; None for a new index."""

    def position_before(self) -> Position | None:
        """The position before the newest batch; None where that was the first one."""

    @property
    def entry_count(self) -> int:
        """How many entries there are, of all kinds."""

    def lookup(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The value of each key, None where there is none."""

    def newest(self, prefixes: Sequence[bytes], below: Sequence[int]) -> list[bytes | None]:
        """The newest entry of each prefix that was recorded below the log offset in the same place, or None.

        Keys of such entries are the prefix, for the first one where its kind says so, or the prefix and the log offset
        at which they were recorded.
        """

    def write(self, entries: Mapping[bytes, bytes], position: Position) -> None:
        """Add entries and move the position: both or neither (one write batch).

        No key exists yet. The rules record each entry once, and it never changes.
        """

    def entries(self, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """All entries whose keys begin with the prefix, in key order."""

    def checkpoint(self, folder: Path) -> None:
        """Write a consistent copy, position included, into a folder that does not exist yet."""

    def close(self) -> None:
        """Close. May be repeated."""
