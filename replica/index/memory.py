"""The committed-state index in memory: a double with the same contract, for tests and the simulator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from replica.index.commands import due
from replica.index.interface import NOTHING, OFFSET_END
from replica.notary.acceptances import FIRST_KEY_BYTES, first_key, later_key
from replica.notary.errors import IndexUnreadable, InvariantBroken
from replica.notary.parties import OFFICERS_KEY, Officers, decode_officers_entry
from replica.notary.position import Position, encode_position


class MemoryCommands:
    """See Commands. Keys of later acceptances are listed by their first one's key."""

    def __init__(self) -> None:
        self.fail_with: str | None = None
        self._entries: dict[bytes, bytes] = {}
        self._of: dict[bytes, list[bytes]] = {}
        self._position: Position | None = None

    def position(self) -> Position | None:
        """See Commands."""
        self._check()
        return self._position

    @property
    def entry_count(self) -> int:
        """See Commands."""
        return len(self._entries)

    def newest(self, change_ids: Sequence[bytes], below: Sequence[int]) -> list[bytes | None]:
        """See Commands."""
        self._check()
        return [self._newest(change_id, offset) for change_id, offset in zip(change_ids, below, strict=True)]

    def lookup(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See Commands."""
        self._check()
        return [self._entries.get(key) for key in keys]

    def write(self, entries: Mapping[bytes, bytes], position: Position) -> None:
        """See Commands."""
        self._check()
        encode_position(position)
        if twice := entries.keys() & self._entries.keys():  # a table on a disk would count it twice
            raise InvariantBroken(f"acceptances are written that were there: {sorted(twice)}")
        for key, value in entries.items():
            self._entries[key] = value
            self._of.setdefault(key[:FIRST_KEY_BYTES], []).append(key)
        self._position = position

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        """See Commands."""
        self._check()
        return iter(sorted(self._entries.items()))

    def _newest(self, change_id: bytes, below: int) -> bytes | None:
        first = first_key(change_id)
        value = self._entries.get(first)
        if value is None or int.from_bytes(value[-8:], "big") >= below:
            return None
        bound = later_key(change_id, below)
        return self._entries[max(key for key in self._of[first] if key < bound)]

    def _check(self) -> None:
        if self.fail_with is not None:
            raise IndexUnreadable(self.fail_with)


class MemoryParties:
    """See Parties."""

    def __init__(self) -> None:
        self.fail_with: str | None = None
        self._entries: dict[bytes, bytes] = {}
        self._position: Position | None = None

    def position(self) -> Position | None:
        """See Parties."""
        self._check()
        return self._position

    @property
    def entry_count(self) -> int:
        """See Parties."""
        return len(self._entries)

    def officers(self) -> Officers:
        """See Parties."""
        self._check()
        value = self._newest(OFFICERS_KEY, OFFSET_END)
        return Officers() if value is None else decode_officers_entry(value)

    def newest(self, ids: Sequence[bytes], below: Sequence[int]) -> list[bytes | None]:
        """See Parties."""
        self._check()
        return [self._newest(prefix, offset) for prefix, offset in zip(ids, below, strict=True)]

    def lookup(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See Parties."""
        self._check()
        return [self._entries.get(key) for key in keys]

    def write(self, entries: Mapping[bytes, bytes], position: Position) -> None:
        """See Parties."""
        self._check()
        encode_position(position)
        if twice := entries.keys() & self._entries.keys():  # a table on a disk would count it twice
            raise InvariantBroken(f"registrations are written that were there: {sorted(twice)}")
        self._entries.update(entries)
        self._position = position

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        """See Parties."""
        self._check()
        return iter(sorted(self._entries.items()))

    def _newest(self, prefix: bytes, below: int) -> bytes | None:
        bound = prefix + below.to_bytes(8, "big")
        found = max((key for key in self._entries if key.startswith(prefix) and key < bound), default=None)
        return None if found is None else self._entries[found]

    def _check(self) -> None:
        if self.fail_with is not None:
            raise IndexUnreadable(self.fail_with)


class MemoryIndex:
    """A dictionary. `fail_with` set: every further call raises IndexUnreadable with it."""

    def __init__(self) -> None:
        self.fail_with: str | None = None
        self.commands = MemoryCommands()
        self.parties = MemoryParties()
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

    def write(
        self, entries: Mapping[bytes, bytes], position: Position, accepted: Mapping[bytes, bytes] = NOTHING
    ) -> None:
        """See Index."""
        self._check()
        encode_position(position)  # the double, too, refuses a position that cannot be stored
        accepted_due = due(accepted, self.commands.position(), self._position, position)
        if accepted_due is not None:
            self.commands.write(accepted_due, position)
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
