"""Whether a worker may stamp records: its clock agreed with the one that all replicas share, and has not jumped since.
That is the database's, or without one, what a majority of the log nodes tells. Pure.

It is not compared with the highest stamp of the log. After a quiet night every clock is far from that, and after one
fast clock the good ones would be.
"""

from __future__ import annotations

import msgspec

JUMP_MAX_US = 1_500_000  # above a leap second
AGE_MAX_S = 3_600.0  # two clocks that are slewed by 500 ppm drift 1.8 s apart meanwhile; the shared one may be away
_SHARED = "that of the database or log nodes"


class ClockSeen(msgspec.Struct, frozen=True):
    """The newest comparison: seconds by which our clock is ahead of the shared one (behind, if negative), the boot time
    then, and when the machine booted by our wall clock, microseconds UTC."""

    skew_s: float
    at_s: float
    booted_us: int


def booted_us(wall_us: int, boottime_s: float) -> int:
    """When the machine booted by its wall clock, microseconds UTC. It is constant unless that clock jumps."""
    return wall_us - round(boottime_s * 1e6)


def why_not_stamp(seen: ClockSeen | None, wall_us: int, boottime_s: float, skew_max_s: float) -> str | None:
    """Why this clock may not stamp a record now; None if it may."""
    if seen is None:
        return f"the clock was not compared with {_SHARED} yet"
    if abs(seen.skew_s) > skew_max_s:
        return f"the clock differs from {_SHARED} by {seen.skew_s:+.3f} s"
    if abs(booted_us(wall_us, boottime_s) - seen.booted_us) > JUMP_MAX_US:
        return "the wall clock jumped"
    if boottime_s - seen.at_s > AGE_MAX_S:
        return f"the clock was not compared with {_SHARED} for {AGE_MAX_S:g} s"
    return None
