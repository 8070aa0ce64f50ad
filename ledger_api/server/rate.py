"""How much one user, or one connection, may ask of a front end: a bucket each that fills at a steady rate. Pure."""

from __future__ import annotations

from collections.abc import Hashable

BUCKETS_MAX = 10_000


class RateLimit:
    """Buckets of `burst` submissions, filled with `per_s` a second. A bucket that is full needs no memory."""

    def __init__(self, per_s: float, burst: int) -> None:
        self._per_s = per_s
        self._burst = float(burst)
        self._buckets: dict[Hashable, tuple[float, float]] = {}  # what was left, and when

    def take(self, key: Hashable, count: int, now_s: float) -> float:
        """Take `count`. Returns 0.0; or, when the bucket has not so many, the seconds after which it will.

        `count` is at most `burst`: more could never be taken.
        """
        left, at_s = self._buckets.get(key, (self._burst, now_s))
        left = min(self._burst, left + (now_s - at_s) * self._per_s)
        if left < count:
            return (count - left) / self._per_s
        if len(self._buckets) >= BUCKETS_MAX:
            self._forget_full_ones(now_s)
        self._buckets[key] = (left - count, now_s)
        return 0.0

    def _forget_full_ones(self, now_s: float) -> None:
        self._buckets = {
            key: (left, at_s)
            for key, (left, at_s) in self._buckets.items()
            if left + (now_s - at_s) * self._per_s < self._burst
        }
