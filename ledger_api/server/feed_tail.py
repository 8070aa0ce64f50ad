"""The newest completions, kept in memory and rendered once for all who follow."""

from __future__ import annotations

from collections.abc import Sequence

from ledger_api.server.feed_lines import Entry

BATCH_ROWS = 500
TAIL_ROWS = 8_000
TAIL_BYTES = 24_000_000  # of those rows and what is rendered of them
WINDOW_BYTES = 512 * 1024  # of the lines that a stream gets at a time, unless one alone is longer
_ROW_BYTES = 1_500


class Tail:
    """The newest entries, without a gap. A reader that lags reads older ones from the database."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._size_bytes = 0

    def clear(self) -> None:
        """Forget all of them."""
        self.entries.clear()
        self._size_bytes = 0

    def after(self, offset: int) -> Sequence[Entry]:
        """Some entries after an offset, about as many as a stream gets at a time; none when the next is not kept."""
        entries = self.entries
        if not entries or not entries[0].offset <= offset + 1 <= entries[-1].offset:
            return ()
        start = offset + 1 - entries[0].offset
        return _window(entries[start : start + BATCH_ROWS])

    def keep(self, entries: Sequence[Entry]) -> None:
        """Keep entries that are newer than all that are kept. If there is a gap to those, they are dropped."""
        kept = self.entries
        if not entries or (kept and entries[-1].offset <= kept[-1].offset):
            return
        if kept and entries[0].offset != kept[-1].offset + 1:
            self.clear()
        kept.extend(entries)
        self._size_bytes += _weight_bytes(entries)
        if len(kept) > TAIL_ROWS or self._size_bytes > TAIL_BYTES:
            dropped = kept[: len(kept) // 2]
            del kept[: len(dropped)]
            self._size_bytes -= _weight_bytes(dropped)


def _window(entries: Sequence[Entry]) -> Sequence[Entry]:
    """The first entries, at least one, whose lines are about what a stream gets at a time."""
    size_bytes = 0
    for count, entry in enumerate(entries):
        size_bytes += len(entry.completion.detail)
        if count and size_bytes > WINDOW_BYTES:
            return entries[:count]
    return entries


def _weight_bytes(entries: Sequence[Entry]) -> int:
    """What kept rows take: names and details once as they are, and about thrice as JSON."""
    details = [len(entry.completion.detail) + sum(map(len, entry.completion.act_as)) for entry in entries]
    return _ROW_BYTES * len(entries) + 4 * sum(details)
