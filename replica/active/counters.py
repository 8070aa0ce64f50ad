"""What a replica counts about its own work, for metrics and status."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ha.ending import Cause
from replica.notary.outcomes import CODE_OF
from replica.notary.reading import Reading
from replica.notary.rules import Verdict


class Counters:
    """Plain cumulative numbers since the process started."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()  # requests judged, by code; counted by every replica that applies
        self.voids: Counter[str] = Counter()  # void records, by reason
        self.barriers = 0
        self.activations = 0
        self.step_downs: Counter[str] = Counter({cause.value: 0 for cause in Cause})

    def note_applied(self, reading: Reading, verdicts: Sequence[Verdict | None]) -> None:
        """Count a run of records; `verdicts` has one entry for each record that counted, None for a note."""
        self.outcomes.update(CODE_OF[verdict.outcome] for verdict in verdicts if verdict is not None)
        self.voids.update(void.reason.value for void in reading.voids)
        self.barriers += len(reading.barriers)

    def note_step_down(self, cause: Cause) -> None:
        """Count why this replica stopped leading, or failed to begin."""
        self.step_downs[cause.value] += 1

    def note_activation_ended(self) -> None:
        """Count an activation of this replica that was opened, or partly so, and is closed."""
        self.activations += 1
