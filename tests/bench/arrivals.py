"""When the requests of an open loop come, and the quantiles of what they waited. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from random import Random

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "max": 1.0}


def poisson_arrivals(per_second: float, duration_s: float, random: Random) -> list[float]:
    """Seconds after the start at which requests come, ascending: a Poisson process, which no answer holds up.

    Raises ValueError for a rate that is not positive.
    """
    if per_second <= 0:
        raise ValueError(f"{per_second} requests a second never come")
    arrivals: list[float] = []
    at_s = random.expovariate(per_second)
    while at_s < duration_s:
        arrivals.append(at_s)
        at_s += random.expovariate(per_second)
    return arrivals


def quantiles_ms(latencies_s: Sequence[float]) -> dict[str, float]:
    """Latencies in milliseconds by quantile, each one that was measured (nearest rank). Raises ValueError for none."""
    if not latencies_s:
        raise ValueError("no request was answered")
    ordered = sorted(latencies_s)
    count = len(ordered)
    return {name: round(1_000 * ordered[max(0, ceil(share * count) - 1)], 3) for name, share in QUANTILES.items()}
