"""For how long a node's log has had no new record."""

from __future__ import annotations

from collections.abc import Iterable

from ha.raft.messages import Entry, Kind


class Quiet:
    """When the newest record came. Times in seconds, by a clock no faster than that of a lease's holder."""

    def __init__(self) -> None:
        self._newest_at_s: float | None = None

    def appended(self, entries: Iterable[Entry], now_s: float) -> None:
        """These came now. Signatures and changes of members are no records: a new leader makes them by itself."""
        if any(entry.kind is Kind.RAW for entry in entries):
            self._newest_at_s = now_s

    def quiet_ms(self, now_s: float) -> int | None:
        """How long ago the newest record came, rounded down; None where that was before this node began to run."""
        return None if self._newest_at_s is None else int((now_s - self._newest_at_s) * 1_000)
