"""The view of each entry, stored as the first index of each view: no memory per entry."""

from __future__ import annotations

from bisect import bisect_right

from ha.invariant import InvariantBroken
from ha.raft.messages import TxId


class ViewHistory:
    """The views that have entries, ascending, and the first index of each. View 0 is "none"."""

    __slots__ = ("_starts", "_views")

    def __init__(self) -> None:
        self._views: list[int] = []
        self._starts: list[int] = []

    def update(self, idx: int, view: int) -> None:
        """The entry at `idx` is of `view`. Raises InvariantBroken where views would fall."""
        newest = self._views[-1] if self._views else 0
        if view == newest:
            return
        if view < newest or (self._starts and idx <= self._starts[-1]):
            raise InvariantBroken(f"view {view} at {idx}, after view {newest}")
        self._views.append(view)
        self._starts.append(idx)

    def rollback(self, idx: int) -> None:
        """Forget the views that begin above `idx`."""
        keep = bisect_right(self._starts, idx)
        del self._views[keep:], self._starts[keep:]

    def view_at(self, idx: int) -> int:
        """The view of the entry at `idx`; 0 before the first. Above the log's end: the last view."""
        place = bisect_right(self._starts, idx)
        return self._views[place - 1] if place else 0

    def start_of_run(self, idx: int) -> int:
        """The first index of the view that the entry at `idx` is of."""
        return self._starts[bisect_right(self._starts, idx) - 1]

    def end_of_run(self, idx: int, last_idx: int) -> int:
        """The last index of the view that the entry at `idx` is of; `last_idx` in the newest view."""
        place = bisect_right(self._starts, idx)
        return self._starts[place] - 1 if place < len(self._starts) else last_idx

    def highest_possible_match(self, at: TxId, last_idx: int) -> int:
        """The highest index at which this log can agree with another one that has `at`.

        It skips whole views, so two logs find where they part in as many rounds as views differ, not entries.
        """
        probe = min(at.idx, last_idx)
        while self.view_at(probe) > at.view:
            probe = self.start_of_run(probe) - 1
        return probe

    def dense(self) -> list[int]:
        """CCF's form: item i is the first index of view i + 1; an empty view shares the start of the next."""
        starts: list[int] = []
        for view, start in zip(self._views, self._starts, strict=True):
            starts.extend([start] * (view - len(starts)))
        return starts
