"""The core's part of a transaction's trace (replica.telemetry.traces). Traces are optional: OpenTelemetry spans of a
sample of the requests. Each time is read from the wall clock of the machine that measured it.
    submit      from the HTTP request, or the stream's frame, to its answer: written by the front end; the root span
      notarise  from admission to answer, by the active
      admit     until the record is handed to the log; the record's stamp
      log       until this replica has read it back: one span of each replica
      judge     rules and write batch of the run it was in: one span of each replica
      answer    signature and answers of the batch
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from replica.notary.counted import Counted, CountedRequest
from replica.notary.rules import Verdict

OLD_AFTER_US = 60_000_000  # an older record is read while catching up, and gets no trace


class Spans(Protocol):
    """Writes spans of transactions; implemented in replica.telemetry.traces."""

    def sampled(self, tx_id: bytes) -> tuple[int, int] | None:
        """The ids of the transaction's trace and of its root, if it has a trace."""

    def child(
        self, ids: tuple[int, int], name: str, from_us: int, to_us: int, attributes: Mapping[str, str | int]
    ) -> None:
        """Write a span below the root. Times are microseconds UTC."""


class TracedCommand(Protocol):
    """The part of a command that traces use."""

    @property
    def tx_id(self) -> bytes:
        """The transaction that it asked for."""

    @property
    def submitted_us(self) -> int:
        """When it was admitted, microseconds UTC."""


class TracedSubmission(Protocol):
    """A submission that was answered."""

    @property
    def command(self) -> TracedCommand:
        """Its command."""


Judged = Iterable[tuple[Counted, Verdict | None]]
Answered = Sequence[tuple[TracedSubmission, CountedRequest, Verdict]]


class Trace(Protocol):
    """Receives reports of the core's work. Must be cheap, and must not raise."""

    def judged(self, judged: Judged, began_us: int) -> None:
        """A run of records was read back at `began_us` (microseconds UTC), and is now judged and stored."""

    def answered(self, answered: Answered, began_us: int) -> None:
        """A batch whose signing began at `began_us` (microseconds UTC) is answered."""


class Untraced:
    """The default: writes no traces."""

    def judged(self, judged: Judged, began_us: int) -> None:
        """See Trace."""

    def answered(self, answered: Answered, began_us: int) -> None:
        """See Trace."""


UNTRACED = Untraced()


class CoreTrace:
    """See Trace."""

    def __init__(self, traces: Spans, wall_us: Callable[[], int]) -> None:
        self._traces = traces
        self._wall_us = wall_us

    def judged(self, judged: Judged, began_us: int) -> None:
        """See Trace."""
        now_us, traces = self._wall_us(), self._traces
        for entry, verdict in judged:
            if isinstance(entry, CountedRequest) and verdict is not None:
                stamp_us = entry.record.stamp_us
                ids = traces.sampled(entry.request.tx_id)
                if ids is not None and began_us - stamp_us < OLD_AFTER_US:
                    traces.child(ids, "log", stamp_us, began_us, {"notary.log_offset": entry.offset})
                    traces.child(ids, "judge", began_us, now_us, {"notary.outcome": verdict.outcome.value})

    def answered(self, answered: Answered, began_us: int) -> None:
        """See Trace."""
        now_us, traces = self._wall_us(), self._traces
        for waiting, entry, verdict in answered:
            ids = traces.sampled(waiting.command.tx_id)
            if ids is not None:
                submitted_us, stamp_us = waiting.command.submitted_us, entry.record.stamp_us
                about = {"notary.tx_id": waiting.command.tx_id.hex(), "notary.outcome": verdict.outcome.value}
                traces.child(ids, "notarise", submitted_us, now_us, about)
                traces.child(ids, "admit", submitted_us, stamp_us, {})
                traces.child(ids, "answer", began_us, now_us, {"notary.batch": len(answered)})
