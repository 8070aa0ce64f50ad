"""What a replica counts about its own work, for metrics and status."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ha.ending import Cause
from replica.active.publisher import CODE_OF
from replica.following.apply import Applied
from replica.notary.counted import CountedSettlement

if TYPE_CHECKING:
    from replica.active.activation import Activation


class Counters:
    """Plain cumulative numbers since the process started."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()  # requests judged, by code; counted by every replica that applies
        self.voids: Counter[str] = Counter()  # void records, by reason
        self.barriers = 0
        self.settled_commands = 0
        self.activations = 0
        self.step_downs: Counter[str] = Counter({cause.value: 0 for cause in Cause})
        self.last_activation_steps_s: dict[str, float] = {}

    def note_applied(self, applied: Applied) -> None:
        """Count a run of records."""
        for entry, verdict in applied.decided():
            if verdict is not None:
                self.outcomes[CODE_OF[verdict.outcome]] += 1
            elif isinstance(entry, CountedSettlement):
                self.settled_commands += len(entry.record.commands)
        self.voids.update(void.reason.value for void in applied.reading.voids)
        self.barriers += len(applied.reading.barriers)

    def note_step_down(self, cause: Cause) -> None:
        """Count why this replica stopped leading, or failed to begin."""
        self.step_downs[cause.value] += 1

    def note_activation_ended(self, activation: Activation) -> None:
        """Keep what the last activation took."""
        self.activations += 1
        self.last_activation_steps_s = dict(activation.steps_s)
