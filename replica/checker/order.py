"""Real-time order (I6): if one submission was answered before another was sent, it comes first in the log, too."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate

from replica.checker.findings import FindingCode, Findings
from replica.checker.operations import NOT_FOUND, Operation

_NEVER_NS = 2**63 - 1
_ALWAYS_NS = -1


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
        self._answered_ns.append(_NEVER_NS if answered_ns is None else answered_ns)

    def note_recalled(self, offset: int, answered_ns: int) -> None:
        """An answer that rests on the record at `offset`, noted before: at that time the log had reached the offset."""
        self.note(offset, _ALWAYS_NS, answered_ns)

    def finish(self, findings: Findings) -> None:
        """Walk the log backwards with the earliest answer so far: a record that was sent after it stands too early."""
        earliest_ns, earliest_offset = _NEVER_NS, -1
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


class DenialCheck:
    """ "Not found" must hold for the part of the log that clients had answers from when the look-up was sent."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self._denied = [o for o in operations if o.answer is not None and o.answer.code == NOT_FOUND]
        answered = [(o.answer.at_ns, o.witnessed_offset) for o in operations if self._denied and o.answer is not None]
        answered.sort()
        self._answered_ns = [at_ns for at_ns, _ in answered]
        self._reached = list(accumulate((offset for _, offset in answered), max, initial=-1))

    def finish(self, notarised: Mapping[bytes, tuple[bytes, int]], findings: Findings) -> None:
        """Compare with where the log notarised the denied transactions: transaction id -> (digest, offset)."""
        for operation in self._denied:
            reached = self._reached[bisect_left(self._answered_ns, operation.sent_ns)]
            found = notarised.get(operation.tx_id)
            if found is not None and found[1] <= reached:
                findings.add(
                    FindingCode.DENIED,
                    operation=operation.name,
                    tx_id=operation.tx_id.hex(),
                    log_offset=found[1],
                    known_offset=reached,
                )
