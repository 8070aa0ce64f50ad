"""The operators' words of a log, as one node keeps them: those in force, and those that are not committed yet. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from ha.raft.messages import Entry, Kind
from replica.log.raft.records import Walk
from replica.notary.words import Word, fold


class KeptWords:
    """Follows a node's log; its memory is bounded by that of the words in force and of what is not committed."""

    def __init__(self) -> None:
        self._in_force: dict[str, Word] = {}
        self._uncommitted: deque[Entry] = deque()

    def append(self, entries: Sequence[Entry]) -> None:
        """Entries were appended to the log."""
        self._uncommitted.extend([entry for entry in entries if entry.kind is Kind.WORD])

    def add_walk(self, walk: Walk, first_idx: int) -> None:
        """The log goes on with the entries of a sealed file, from `first_idx` on; all of them are committed."""
        self.append([entry for entry in walk.marks if entry.idx >= first_idx])
        self.committed(walk.next_idx - 1)

    def opened(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """Pass the log's next entries on."""
        for entry in entries:
            if entry.kind is Kind.WORD:
                self._uncommitted.append(entry)
            yield entry

    def cut(self, idx: int) -> None:
        """Entries above `idx` are gone."""
        while self._uncommitted and self._uncommitted[-1].idx > idx:
            self._uncommitted.pop()

    def committed(self, idx: int) -> None:
        """Everything up to `idx` is committed."""
        while self._uncommitted and self._uncommitted[0].idx <= idx:
            entry = self._uncommitted.popleft()
            fold(self._in_force, entry.idx, entry.body)

    def named(self, name: str) -> dict[str, Word]:
        """The word in force under this name, if there is one."""
        return {name: self._in_force[name]} if name in self._in_force else {}

    def under(self, prefix: str) -> dict[str, Word]:
        """The words in force whose names begin so."""
        return {name: word for name, word in self._in_force.items() if name.startswith(prefix)}
