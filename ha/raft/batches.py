"""How many entries go into one message: as many as recently filled one, averaged over some hundred ticks."""

from __future__ import annotations

WINDOW = 100


class BatchSize:
    """CCF's estimator. `entries` is the present answer; `fixed` keeps it as it is."""

    __slots__ = ("_bytes", "_entries", "_fixed", "_least", "_limit_bytes", "_window_sum", "entries")

    def __init__(self, limit_bytes: int, first: int, least: int, *, fixed: bool) -> None:
        self.entries = first
        self._limit_bytes = limit_bytes
        self._least = least
        self._fixed = fixed
        self._window_sum = 0
        self._bytes = self._entries = 0

    def count(self, entries: int, size_bytes: int) -> bool:
        """Count what was appended; True once that fills a whole message since the last update."""
        self._entries += entries
        self._bytes += size_bytes
        return self._bytes >= self._limit_bytes

    def update(self) -> None:
        """Include what was appended in the average. If nothing was, an entry counts as large as the limit."""
        average = self._bytes // self._entries if self._entries else self._limit_bytes
        self._bytes = self._entries = 0
        if not self._fixed:
            self._window_sum += self._limit_bytes // max(average, 1) - self._window_sum // WINDOW
            self.entries = max(self._window_sum // WINDOW, self._least, 1)
