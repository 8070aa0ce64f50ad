"""The disk of a machine: its index, which outlives a process and loses its newest batches with the machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from replica.index.commands import due
from replica.index.interface import NOTHING, Commands, Parties
from replica.index.memory import MemoryCommands, MemoryParties
from replica.notary.acceptances import FIRST_KEY_BYTES
from replica.notary.errors import IndexUnreadable
from replica.notary.parties import Officers
from replica.notary.position import Position
from replica.notary.requests import TIME_MAX_US
from tests.simulation.weather import Skies


class Disk:
    """One machine's index: what is written outlives the process, except the newest batches if the machine goes.
    No batch is synced."""

    def __init__(self) -> None:
        self.entries: dict[bytes, bytes] = {}
        self.position: Position | None = None
        self.commands = DiskCommands()
        self.parties = DiskParties()
        self._undo: list[tuple[list[bytes], Position | None]] = []

    def write(
        self, entries: Mapping[bytes, bytes], position: Position, accepted: Mapping[bytes, bytes] = NOTHING
    ) -> None:
        """One batch each for commands and the rest."""
        accepted_due = due(accepted, self.commands.position(), self.position, position)
        if accepted_due is not None:
            self.commands.write(accepted_due, position)
        self.write_states(entries, position)

    def write_states(self, entries: Mapping[bytes, bytes], position: Position) -> None:
        """What an older release writes: it leaves the table of commands where it is."""
        self._undo.append(([key for key in entries if key not in self.entries], self.position))
        self.entries.update(entries)
        self.position = position

    def tear(self, batches: int, of_commands: int) -> int:
        """Lose the newest batches of both tables, each whole; returns how many there were to lose of the first one.

        The two tables have write-ahead logs of their own, so one may lose more than the other.
        """
        lost = min(batches, len(self._undo))
        for _ in range(lost):
            added, self.position = self._undo.pop()
            for key in added:
                del self.entries[key]
        self.commands.tear(of_commands)
        self.parties.tear(of_commands)
        return lost


class DiskCommands(MemoryCommands):
    """The acceptances on one machine's disk."""

    def __init__(self) -> None:
        super().__init__()
        self._undo: list[tuple[list[bytes], Position | None]] = []

    def write(self, entries: Mapping[bytes, bytes], position: Position) -> None:
        self._undo.append((list(entries), self._position))
        super().write(entries, position)

    def tear(self, batches: int) -> None:
        """Lose the newest batches, each whole."""
        for _ in range(min(batches, len(self._undo))):
            added, self._position = self._undo.pop()
            for key in added:
                del self._entries[key]
                self._of[key[:FIRST_KEY_BYTES]].remove(key)


class DiskParties(MemoryParties):
    """Officers and registrations on one machine's disk."""

    def __init__(self) -> None:
        super().__init__()
        self._undo: list[tuple[list[bytes], Position | None]] = []

    def write(self, entries: Mapping[bytes, bytes], position: Position) -> None:
        self._undo.append((list(entries), self._position))
        super().write(entries, position)

    def tear(self, batches: int) -> None:
        """Lose the newest batches, each whole."""
        for _ in range(min(batches, len(self._undo))):
            added, self._position = self._undo.pop()
            for key in added:
                del self._entries[key]


class PartiesAccess:
    """A process' access to officers and registrations on its machine's disk."""

    def __init__(self, table: DiskParties, require_disk: Callable[[str], None]) -> None:
        self._table = table
        self._require_disk = require_disk

    def position(self) -> Position | None:
        return self._table.position()

    @property
    def entry_count(self) -> int:
        return self._table.entry_count

    def officers(self) -> Officers:
        return self._table.officers()

    def newest(self, ids: Sequence[bytes], below: Sequence[int]) -> list[bytes | None]:
        self._require_disk("index_read_failed")
        return self._table.newest(ids, below)

    def lookup(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self._require_disk("index_read_failed")
        return self._table.lookup(keys)

    def write(self, entries: Mapping[bytes, bytes], position: Position) -> None:
        self._require_disk("index_write_failed")
        self._table.write(entries, position)

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        return self._table.entries()


class CommandsAccess:
    """A process' access to the acceptances on its machine's disk."""

    def __init__(self, table: DiskCommands, require_disk: Callable[[str], None], blind: bool) -> None:
        """`blind`: an admission that asks for the newest of all finds nothing."""
        self._blind = blind
        self._table = table
        self._require_disk = require_disk

    def position(self) -> Position | None:
        return self._table.position()

    @property
    def entry_count(self) -> int:
        return self._table.entry_count

    def newest(self, change_ids: Sequence[bytes], below: Sequence[int]) -> list[bytes | None]:
        self._require_disk("index_read_failed")
        if self._blind and below and below[0] == TIME_MAX_US:
            return [None] * len(change_ids)
        return self._table.newest(change_ids, below)

    def lookup(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self._require_disk("index_read_failed")
        return self._table.lookup(keys)

    def write(self, entries: Mapping[bytes, bytes], position: Position) -> None:
        self._require_disk("index_write_failed")
        self._table.write(entries, position)

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        return self._table.entries()


class DiskIndex:
    """A process' access to the index on its machine's disk."""

    def __init__(self, disk: Disk, name: str, skies: Skies, blind: bool = False) -> None:
        self._disk = disk
        self._blind = blind
        self._name = name
        self._skies = skies

    def position(self) -> Position | None:
        return self._disk.position

    @property
    def commands(self) -> Commands:
        return CommandsAccess(self._disk.commands, self._require_disk, self._blind)

    @property
    def parties(self) -> Parties:
        return PartiesAccess(self._disk.parties, self._require_disk)

    def lookup(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self._require_disk("index_read_failed")
        entries = self._disk.entries
        return [entries.get(key) for key in keys]

    def write(
        self, entries: Mapping[bytes, bytes], position: Position, accepted: Mapping[bytes, bytes] = NOTHING
    ) -> None:
        self._require_disk("index_write_failed")
        self._disk.write(entries, position, accepted)

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        return iter(sorted(self._disk.entries.items()))

    def checkpoint(self, folder: Path) -> None:
        raise IndexUnreadable("there is no folder in a simulation")

    def close(self) -> None:
        return

    def _require_disk(self, what: str) -> None:
        if self._skies.of(self._name).disk_broken:
            self._skies.struck(what, self._name)
            raise IndexUnreadable("input/output error")


class OlderIndex(DiskIndex):
    """The same of an older release, which knows nothing of acceptances and registrations: it neither reads nor writes
    them."""

    @property
    def commands(self) -> Commands:
        return _Unknown(self._disk)

    @property
    def parties(self) -> Parties:
        return _UnknownParties(self._disk)

    def write(
        self, entries: Mapping[bytes, bytes], position: Position, accepted: Mapping[bytes, bytes] = NOTHING
    ) -> None:
        self._require_disk("index_write_failed")
        self._disk.write_states(entries, position)


class _UnknownParties(MemoryParties):
    """Likewise; what is written there is gone."""

    def __init__(self, disk: Disk) -> None:
        super().__init__()
        self._disk = disk

    def position(self) -> Position | None:
        return self._disk.position


class _Unknown(MemoryCommands):
    """Nothing is missing in it, so that nobody completes it."""

    def __init__(self, disk: Disk) -> None:
        super().__init__()
        self._disk = disk

    def position(self) -> Position | None:
        return self._disk.position
