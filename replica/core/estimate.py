"""How long a new request will take at most, from the queue and recent throughput (reference: Corda's notary).

Pure arithmetic: time is an argument.
"""

from __future__ import annotations

from collections import deque
from statistics import median

_SAMPLES_MAX = 100
_FACTOR = 2  # makes the estimate a likely upper bound


class CompletionEstimate:
    """Median throughput over the last 100 batches, in states per second; two times queued states over it."""

    def __init__(self, default_s: float) -> None:
        self._default_s = default_s
        self._samples: deque[float] = deque(maxlen=_SAMPLES_MAX)

    def note_batch(self, states: int, elapsed_s: float) -> None:
        """A batch of so many states took so long."""
        if states > 0 and elapsed_s > 0:
            self._samples.append(states / elapsed_s)

    def wait_s(self, queued_states: int) -> float:
        """Upper estimate for a request that joins behind `queued_states`; the default while nothing is known."""
        if not self._samples or queued_states <= 0:
            return self._default_s
        return _FACTOR * queued_states / median(self._samples)
