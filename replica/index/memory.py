"""The committed-state index in memory: a double with the same contract, for tests and the simulator."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from replica.index.compare import recorded_at
from replica.notary.acceptances import COMMAND_KEY, FIRST_KEY_BYTES
from replica.notary.errors import IndexUnreadable, InvariantBroken
from replica.notary.parties import OFFICERS_KEY, PARTY_KEY
from replica.notary.position import Position, encode_position

_OFFSET_BYTES = 8


class MemoryIndex:
    """A dictionary. `fail_with` set: every further call raises IndexUnreadable with it."""

    def __init__(self) -> None:
        self.fail_with: str | None = None
        self._entries: dict[bytes, bytes] = {}
        self._of: dict[bytes, list[bytes]] = {}  # keys by their prefix, as they were recorded
        self._position: Position | None = None
        self._before: Position | None = None

    def position(self) -> Position | None:
        """See Index."""
        self._check()
        return self._position

    def position_before(self) -> Position | None:
        """See Index."""
        self._check()
        return self._before

    @property
    def entry_count(self) -> int:
        """See Index."""
        return len(self._entries)

    def lookup(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See Index."""
        self._check()
        return [self._entries.get(key) for key in keys]

    def newest(self, prefixes: Sequence[bytes], below: Sequence[int]) -> list[bytes | None]:
        """See Index."""
        self._check()
        return [self._newest(prefix, offset) for prefix, offset in zip(prefixes, below, strict=True)]

    def write(self, entries: Mapping[bytes, bytes], position: Position) -> None:
        """See Index."""
        self._check()
        encode_position(position)  # the double, too, refuses a position that cannot be stored
        if twice := entries.keys() & self._entries.keys():  # an index on a disk would count it twice
            raise InvariantBroken(f"entries are written that were there: {sorted(twice)}")
        self._entries.update(entries)
        for key in sorted(entries):
            if (prefix := prefix_of(key)) is not None:
                self._of.setdefault(prefix, []).append(key)
        self._before, self._position = self._position, position

    def entries(self, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """See Index."""
        self._check()
        return iter(sorted(item for item in self._entries.items() if item[0].startswith(prefix)))

    def checkpoint(self, folder: Path) -> None:
        """Not in memory."""
        raise IndexUnreadable("an index in memory has no checkpoints")

    def close(self) -> None:
        """See Index."""

    def _newest(self, prefix: bytes, below: int) -> bytes | None:
        keys = self._of.get(prefix, [])
        at = bisect_left(keys, below, key=lambda key: recorded_at(self._entries[key]))
        return self._entries[keys[at - 1]] if at else None

    def _check(self) -> None:
        if self.fail_with is not None:
            raise IndexUnreadable(self.fail_with)


def prefix_of(key: bytes) -> bytes | None:
    """By which `newest` finds an entry; None for kinds that have one entry a prefix."""
    if key[:1] == COMMAND_KEY:
        return key[:FIRST_KEY_BYTES]
    return key[:-_OFFSET_BYTES] if key[:1] in (OFFICERS_KEY, PARTY_KEY) else None
