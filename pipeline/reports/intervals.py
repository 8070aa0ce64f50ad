"""How long the intervals are in which a report counts, and how many of the most frequent it lists."""

from __future__ import annotations

INTERVALS_MAX = 500
TOP = 50  # parties, and states
HOT_REFUSED_MIN = 2  # requests refused for a hot state: one alone is a conflict as any other
_YEAR_S = 365 * 86_400
NICE_S = (1, 2, 5, 10, 30, 60, 300, 600, 1800, 3600, 6 * 3600, 86_400, 7 * 86_400, 30 * 86_400, _YEAR_S)


def interval_s(first_us: int, last_us: int) -> int:
    """Seconds of one interval, so that at most INTERVALS_MAX lie between two times; whole years past the longest."""
    wanted = (last_us - first_us) / 1e6 / (INTERVALS_MAX - 1)
    return next((nice for nice in NICE_S if nice >= wanted), (int(wanted) // _YEAR_S + 1) * _YEAR_S)
