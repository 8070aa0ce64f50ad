"""How far answers run ahead of marks that survive a power cut, where the log itself does not. Pure.

An offset is *covered* once it is published, or stands in this replica's seen file and in a peer's. Should a power cut
then take the record, a start notices. Answers may rest on a record that is not covered for LEAD_MAX_S, and on
`exposed_max_records` of them. Beyond that nothing is answered, and submissions are refused as OVERLOADED.
"""

from __future__ import annotations

from collections import deque

LEAD_MAX_S = 1.0
_GRAIN_S = 0.02  # records that were applied so soon after one another count as applied with the first of them


class Lead:
    """Fed with what was applied and what is covered. `why_not` judges both."""

    def __init__(self, exposed_max_records: int | None) -> None:
        """None: the log survives a power cut, so nothing is exposed."""
        self._max = exposed_max_records
        self._applied = -1
        self._covered = -1
        self._uncovered: deque[tuple[int, float]] = deque()  # newest offset of a moment, and when it began; bounded

    @property
    def exposed_records(self) -> int:
        """Applied records that a power cut could take without a trace."""
        return 0 if self._max is None else max(0, self._applied - self._covered)

    def note_applied(self, offset: int, now_s: float) -> None:
        """Records up to this offset are applied, and may be answered."""
        if self._max is None:
            return
        self._applied = offset
        if self._uncovered and now_s - self._uncovered[-1][1] < _GRAIN_S:
            self._uncovered[-1] = offset, self._uncovered[-1][1]
        elif not self._uncovered or now_s - self._uncovered[0][1] < LEAD_MAX_S:
            self._uncovered.append((offset, now_s))
        else:  # the oldest is too old already: more moments would tell nothing
            self._uncovered[-1] = offset, self._uncovered[-1][1]
        self.note_covered(self._covered)

    def note_covered(self, offset: int) -> None:
        """Records up to this offset are covered. Never falls."""
        self._covered = max(self._covered, offset)
        while self._uncovered and self._uncovered[0][0] <= self._covered:
            self._uncovered.popleft()

    def why_not(self, now_s: float) -> str | None:
        """Why nothing may be answered now; None if it may."""
        if self._max is None:
            return None
        if self.exposed_records > self._max:
            return f"{self.exposed_records} records are on no disk that survives a power cut"
        if self._uncovered and now_s - self._uncovered[0][1] >= LEAD_MAX_S:
            age_s = now_s - self._uncovered[0][1]
            return f"records have been on no disk that survives a power cut for {age_s:.1f} s"
        return None


NO_LEAD = Lead(None)
