"""The ledger offsets of what a worker applies, without publishing anything. Pure.

Ledger offsets are dense in log order, so they are a count: how many completions the records before have. Only the
holder of the lock publishes them. A worker begins with what the database shows as published, and counts on.
"""

from __future__ import annotations

from bisect import bisect_right

from replica.following.apply import Applied
from replica.notary.counted import CountedRequest

COUNTED_MAX = 200_000  # completions remembered until one published position among them is known


class LedgerCount:
    """Gets every run in order, and once what was published."""

    def __init__(self) -> None:
        self._since: int | None = None  # completions of all records after this offset are counted
        self._at: list[int] = []  # their records' offsets, while `end` is not known
        self._applied = -1
        self._published: tuple[int, int] | None = None  # the newest that was learnt, while `end` is not known
        self.end: int | None = None  # the ledger offset of the newest completion applied here; None: not known yet

    def learn(self, log_offset: int, ledger_end: int) -> None:
        """Note that completions are published up to that log offset, and that the last one has that ledger offset."""
        if self.end is None:
            self._published = log_offset, ledger_end
            self._settle()

    def take(self, applied: Applied) -> dict[int, int | None]:
        """Count a run. Returns the ledger offset of each request's completion by log offset; None: not known yet."""
        if self._since is None:
            self._since = applied.reading.after_offset
        found: dict[int, int | None] = {}
        for entry in applied.reading.counted:
            if not isinstance(entry, CountedRequest):
                continue
            if self.end is None:
                self._at.append(entry.offset)
            else:
                self.end += 1
            found[entry.offset] = self.end
        self._applied = applied.position.offset
        if self.end is None:
            self._settle()
            if self.end is None:
                self._forget_if_many()
            else:
                return {offset: self._of(offset) for offset in found}
        elif self._at:
            self._at = []
        return found

    def _settle(self) -> None:
        """Find the ledger's end, once the published position lies within what was counted."""
        if self._published is None or self._since is None:
            return
        log_offset, ledger_end = self._published
        if self._since <= log_offset <= self._applied:
            self.end = ledger_end + len(self._at) - bisect_right(self._at, log_offset)

    def _of(self, log_offset: int) -> int | None:
        """The ledger offset of a request of the run in which the end became known."""
        return None if self.end is None else self.end - (len(self._at) - bisect_right(self._at, log_offset))

    def _forget_if_many(self) -> None:
        """What is published lags far behind: begin anew from here."""
        if len(self._at) > COUNTED_MAX:
            self._at, self._since = [], self._applied
