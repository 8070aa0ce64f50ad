"""The committed-state index in memory: a double with the same contract, for tests and the simulator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from replica.notary.errors import IndexUnreadable
from replica.notary.position import Position, encode_position


class MemoryIndex:
    """A dictionary. `fail_with` set: every further call raises IndexUnreadable with it."""

    def __init__(self) -> None:
        self.fail_with: str | None = None
        self._entries: dict[bytes, bytes] = {}
        self._position: Position | None = None

    def position(self) -> Position | None:
        """See Index."""
        self._check()
        return self._position

    def lookup(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See Index."""
        self._check()
        return [self._entries.get(key) for key in keys]

    def write(self, entries: Mapping[bytes, bytes], position: Position) -> None:
        """See Index."""
        self._check()
        encode_position(position)  # the double, too, refuses a position that cannot be stored
        self._entries.update(entries)
        self._position = position

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        """See Index."""
        self._check()
        return iter(sorted(self._entries.items()))

    def checkpoint(self, folder: Path) -> None:
        """Not in memory."""
        raise IndexUnreadable("an index in memory has no checkpoints")

    def close(self) -> None:
        """See Index."""

    def _check(self) -> None:
        if self.fail_with is not None:
            raise IndexUnreadable(self.fail_with)
