"""Real-time order (I6): what was answered before another was sent also stands before it in the log."""

from __future__ import annotations

from array import array

from replica.checker.findings import FindingCode, Findings

_NEVER = 2**63 - 1


class OrderCheck:
    """Takes counting request records in log order, each with the time it was sent and the time it was answered."""

    def __init__(self) -> None:
        self._offsets = array("q")
        self._sent_ns = array("q")
        self._answered_ns = array("q")

    def note(self, offset: int, sent_ns: int, answered_ns: int | None) -> None:
        """The submission whose record is at `offset`. The sending time may be a lower bound; no answer is None."""
        self._offsets.append(offset)
        self._sent_ns.append(sent_ns)
        self._answered_ns.append(_NEVER if answered_ns is None else answered_ns)

    def finish(self, findings: Findings) -> None:
        """Walk the log backwards, keeping the earliest answer met: whatever was sent after it stands too early."""
        earliest_ns, earliest_offset = _NEVER, -1
        for at in range(len(self._offsets) - 1, -1, -1):
            if self._sent_ns[at] > earliest_ns:
                findings.add(
                    FindingCode.ORDER_BROKEN,
                    record_offset=self._offsets[at],
                    sent_ns=self._sent_ns[at],
                    later_record_offset=earliest_offset,
                    later_answered_ns=earliest_ns,
                )
            if self._answered_ns[at] < earliest_ns:
                earliest_ns, earliest_offset = self._answered_ns[at], self._offsets[at]
