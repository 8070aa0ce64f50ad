"""How long a new request will take at most, from the queue and recent throughput (reference: Corda's notary).

Pure arithmetic: time is an argument.
"""

from __future__ import annotations

from collections import deque
from statistics import median

SAMPLES_MIN = 10  # the first batches of a burst are small and slow: judged by one, a second's work looks like minutes
SAMPLES_MAX = 100
WAIT_MAX_S = 86_400.0  # the longest answer
FACTOR = 2  # makes the estimate a likely upper bound


class CompletionEstimate:
    """Median throughput over the last 100 batches, in states per second; two times queued states over it."""

    def __init__(self, default_s: float) -> None:
        self._default_s = default_s
        self._samples: deque[float] = deque(maxlen=SAMPLES_MAX)
        self._states = 0  # decided since the last sample: batches that were decided in one moment count as one
        self._throughput: float | None = None  # the median, until there is another sample

    def note_batch(self, states: int, elapsed_s: float, left_states: int) -> bool:
        """Count a batch and the states left waiting. False: no time has passed, so its states go to the next batch.

        Only batches that left at least as much waiting are samples. A batch with little queued after it measures
        demand, not capacity, and would make a burst look like hours of work.
        """
        if elapsed_s <= 0:
            self._states += states
            return False
        states, self._states = states + self._states, 0
        if 0 < states <= left_states:
            self._samples.append(states / elapsed_s)
            self._throughput = None
        return True

    def wait_s(self, queued_states: int) -> float:
        """Upper estimate for a request that joins after `queued_states`; the default while too little is known."""
        throughput = self._median()
        if throughput is None or len(self._samples) < SAMPLES_MIN or queued_states <= 0:
            return self._default_s
        return min(FACTOR * queued_states / throughput, WAIT_MAX_S)

    def states_in(self, time_s: float) -> int | None:
        """States that are decided in so long while more are waiting; None while nothing is known."""
        throughput = self._median()
        return None if throughput is None else int(throughput * time_s)

    def _median(self) -> float | None:
        if self._throughput is None and self._samples:
            self._throughput = median(self._samples)
        return self._throughput
