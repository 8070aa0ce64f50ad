"""The data of the charts: one sample a second, kept for ten minutes. Pure arithmetic; time is an argument."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from replica.telemetry.counts import LATENCY_BOUNDS_S

SAMPLES_MAX = 600
SAMPLE_S = 1.0
_SUCCESSES, _CONFLICT = ("NOTARISED", "DEDUPLICATED"), "STATE_CONFLICT"


class Reading(msgspec.Struct, frozen=True):
    """The replica's state at one moment. Counters run since its start; `wall_us` is microseconds UTC."""

    at_s: float
    wall_us: int
    outcomes: dict[str, int]  # requests judged, by code
    latency: tuple[int, ...]  # requests answered, by LATENCY_BOUNDS_S; one more for what took longer
    active: bool
    epoch: int
    lag_records: int
    in_flight: int
    estimate_s: float


class Sample(msgspec.Struct, frozen=True):
    """One point of every chart. Rates are per second; times in seconds, None when nothing was answered."""

    t_ms: int  # since 1970, UTC
    notarised: float
    refused: float
    conflicts: float
    p50_s: float | None
    p99_s: float | None
    estimate_s: float
    lag_records: int
    in_flight: int
    active: bool
    epoch: int


class Samples:
    """The newest samples, oldest first."""

    def __init__(self) -> None:
        self._last: Reading | None = None
        self._kept: deque[Sample] = deque(maxlen=SAMPLES_MAX)

    def note(self, reading: Reading) -> None:
        """Take a reading; from the second on each makes a sample."""
        if self._last is not None and reading.at_s > self._last.at_s:
            self._kept.append(make_sample(self._last, reading))
        self._last = reading

    def newest(self) -> Sample | None:
        """The newest one; None before the second reading."""
        return self._kept[-1] if self._kept else None

    def after(self, t_ms: int) -> list[Sample]:
        """Those that are newer."""
        return [sample for sample in self._kept if sample.t_ms > t_ms]


def make_sample(before: Reading, after: Reading) -> Sample:
    """What happened between two readings. A counter that went back was restarted, so it counts from zero."""
    elapsed_s = after.at_s - before.at_s
    judged = {code: _risen(before.outcomes.get(code, 0), count) for code, count in after.outcomes.items()}
    latency = risen(before.latency, after.latency)
    notarised = sum(judged.pop(code, 0) for code in _SUCCESSES)
    return Sample(
        after.wall_us // 1_000,
        notarised / elapsed_s,
        sum(judged.values()) / elapsed_s,
        judged.get(_CONFLICT, 0) / elapsed_s,
        quantile(latency, 0.5),
        quantile(latency, 0.99),
        after.estimate_s,
        after.lag_records,
        after.in_flight,
        after.active,
        after.epoch,
    )


def quantile(buckets: Sequence[int], share: float) -> float | None:
    """The latency in seconds that this share of requests stayed below, interpolated linearly inside a bucket."""
    rank = share * sum(buckets)
    if not rank:
        return None
    below, lower = 0, 0.0
    for count, upper in zip(buckets, LATENCY_BOUNDS_S, strict=False):
        if below + count >= rank:
            return lower + (upper - lower) * (rank - below) / count
        below, lower = below + count, upper
    return lower  # beyond the last bound nothing is known


def risen(before: Sequence[int], after: Sequence[int]) -> list[int]:
    """How much each of the counters rose; one that went back was restarted, so it counts from zero."""
    return [_risen(earlier, later) for earlier, later in zip(before, after, strict=True)]


def _risen(before: int, after: int) -> int:
    return after - before if after >= before else after
