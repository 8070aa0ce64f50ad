"""An index that writes the entries of several runs of records together. What waits is read as if it were written.

An active or a worker reads 20 to 60 records at a time. A write batch of so few entries costs two to three times as much
for each as one of thousands (docs/decisions/0005). What waits is in this process only: one that is killed loses it,
position and entries together, and the replica reads those records from the request log again. So would a machine that
crashes, in any case.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from replica.index.commands import due
from replica.index.interface import NOTHING, Commands, Index, Parties
from replica.notary.acceptances import FIRST_KEY_BYTES, first_key
from replica.notary.errors import IndexUnreadable
from replica.notary.parties import Officers
from replica.notary.position import Position, encode_position

WRITTEN_TOGETHER = 2_500  # entries: those of 500 requests with four inputs, about 4 ms of the event loop


class Table(Protocol):
    """What all tables of an index have; see Index."""

    def position(self) -> Position | None:
        """See Index."""

    @property
    def entry_count(self) -> int:
        """See Index."""

    def lookup(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See Index."""

    def write(self, entries: Mapping[bytes, bytes], position: Position) -> None:
        """See Commands."""

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        """See Index."""


TableT = TypeVar("TableT", bound=Table)


class GatheredTable(Generic[TableT]):
    """One table, and what waits to be written to it. Errors as Index; those of a write may come later."""

    def __init__(self, table: TableT, together: int) -> None:
        """`together`: so many entries wait, at most, beside those of one run."""
        self._table = table
        self._together = together
        self._waiting: dict[bytes, bytes] = {}
        self._position: Position | None = None  # after what waits; None: nothing does

    def position(self) -> Position | None:
        """See Index."""
        written = self._table.position()  # raises once the table has failed
        return written if self._position is None else self._position

    @property
    def entry_count(self) -> int:
        """See Index."""
        return self._table.entry_count + len(self._waiting)

    def lookup(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See Index."""
        found, waiting = self._table.lookup(keys), self._waiting
        if waiting and not waiting.keys().isdisjoint(keys):
            return [waiting.get(key, value) for key, value in zip(keys, found, strict=True)]
        return found

    def write(self, entries: Mapping[bytes, bytes], position: Position) -> None:
        """See Commands. Written with what comes next, or by `flush`."""
        encode_position(position)  # one that cannot be stored is refused now, without its entries
        self._waiting.update(entries)
        self._position = position
        if len(self._waiting) >= self._together:
            self.flush()

    def flush(self) -> None:
        """See Index."""
        if self._position is not None:
            self._table.write(self._waiting, self._position)
            self._waiting, self._position = {}, None

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        """See Index."""
        self.flush()
        return self._table.entries()


class GatheredCommands(GatheredTable[Commands]):
    """See Commands."""

    def __init__(self, table: Commands, together: int) -> None:
        super().__init__(table, together)
        self._concerned: set[bytes] = set()  # commands of what waits, by their first key

    def newest(self, change_ids: Sequence[bytes], below: Sequence[int]) -> list[bytes | None]:
        """See Commands. Few commands are used twice within a moment."""
        if self._concerned and not self._concerned.isdisjoint(map(first_key, change_ids)):
            self.flush()
        return self._table.newest(change_ids, below)

    def write(self, entries: Mapping[bytes, bytes], position: Position) -> None:
        """See Commands."""
        self._concerned.update([key[:FIRST_KEY_BYTES] for key in entries])
        super().write(entries, position)

    def flush(self) -> None:
        """See Index."""
        super().flush()
        self._concerned.clear()


class GatheredParties(GatheredTable[Parties]):
    """See Parties. Registrations are rare, so mostly the position alone waits."""

    def officers(self) -> Officers:
        """See Parties."""
        self._write_entries()
        return self._table.officers()

    def newest(self, ids: Sequence[bytes], below: Sequence[int]) -> list[bytes | None]:
        """See Parties."""
        self._write_entries()
        return self._table.newest(ids, below)

    def _write_entries(self) -> None:
        if self._waiting:
            self.flush()


class GatheredIndex(GatheredTable[Index]):
    """See Index. Nobody else may write to the index that it is over."""

    def __init__(self, index: Index, together: int = WRITTEN_TOGETHER) -> None:
        """As GatheredTable."""
        super().__init__(index, together)
        self.commands = GatheredCommands(index.commands, together)
        self.parties = GatheredParties(index.parties, together)

    def write(
        self, entries: Mapping[bytes, bytes], position: Position, accepted: Mapping[bytes, bytes] = NOTHING
    ) -> None:
        """See Index."""
        accepted_due = due(accepted, self.commands.position(), self.position(), position)
        if accepted_due is not None:
            self.commands.write(accepted_due, position)
        super().write(entries, position)

    def flush(self) -> None:
        """See Index. States last, so that no other table lags behind them, wherever this is interrupted."""
        self.parties.flush()
        self.commands.flush()
        super().flush()

    def checkpoint(self, folder: Path) -> None:
        """See Index."""
        self.flush()
        self._table.checkpoint(folder)

    def close(self) -> None:
        """See Index."""
        with suppress(IndexUnreadable):  # failed, or closed before: the log has everything
            self.flush()
        self._table.close()
