"""The disk of a machine: its index, which outlives a process and loses its newest batches with the machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from replica.index.memory import MemoryIndex, prefix_of
from replica.notary.errors import IndexUnreadable
from replica.notary.position import Position
from replica.notary.requests import TIME_MAX_US
from tests.simulation.weather import Skies


class Disk(MemoryIndex):
    """One machine's index: what is written outlives the process, except the newest batches if the machine goes.
    No batch is synced."""

    def __init__(self) -> None:
        super().__init__()
        self._undo: list[tuple[list[bytes], Position | None, Position | None]] = []

    def write(self, entries: Mapping[bytes, bytes], position: Position) -> None:
        undo = list(entries), self._position, self._before
        super().write(entries, position)
        self._undo.append(undo)

    def tear(self, batches: int) -> int:
        """Lose the newest batches, each whole; returns how many there were to lose."""
        lost = min(batches, len(self._undo))
        for _ in range(lost):
            added, self._position, self._before = self._undo.pop()
            for key in added:
                del self._entries[key]
                if (prefix := prefix_of(key)) is not None:
                    self._of[prefix].remove(key)
        return lost

    def move_to(self, position: Position) -> None:
        """Take this position for the one that it has."""
        self._position = position


class DiskIndex:
    """A process' access to the index on its machine's disk."""

    def __init__(self, disk: Disk, name: str, skies: Skies, blind: bool = False) -> None:
        """`blind`: an admission that asks for the newest of all acceptances finds nothing."""
        self._disk = disk
        self._blind = blind
        self._name = name
        self._skies = skies

    def position(self) -> Position | None:
        return self._disk.position()

    def position_before(self) -> Position | None:
        return self._disk.position_before()

    @property
    def entry_count(self) -> int:
        return self._disk.entry_count

    def lookup(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self._require_disk("index_read_failed")
        return self._disk.lookup(keys)

    def newest(self, prefixes: Sequence[bytes], below: Sequence[int]) -> list[bytes | None]:
        self._require_disk("index_read_failed")
        if self._blind and below and below[0] == TIME_MAX_US:
            return [None] * len(prefixes)
        return self._disk.newest(prefixes, below)

    def write(self, entries: Mapping[bytes, bytes], position: Position) -> None:
        self._require_disk("index_write_failed")
        torn = self._skies.fate(self._name, ("index_write_failed", "index_write_torn"))
        if torn == "index_write_failed":
            raise IndexUnreadable("input/output error")
        self._disk.write(entries, position)
        if torn:
            self._skies.machine_lost(self._name)

    def entries(self, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        return self._disk.entries(prefix)

    def checkpoint(self, folder: Path) -> None:
        raise IndexUnreadable("there is no folder in a simulation")

    def close(self) -> None:
        return

    def _require_disk(self, what: str) -> None:
        if what == "index_read_failed" and self._skies.fate(self._name, (what,)):
            raise IndexUnreadable("input/output error")
        if self._skies.of(self._name).disk_broken:
            self._skies.struck(what, self._name)
            raise IndexUnreadable("input/output error")
