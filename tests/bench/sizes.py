"""How much the bench does: at full length, and in a few minutes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Counts and durations. Medians are over `runs`."""

    runs: int
    run_s: float
    full_speed_s: float  # of the run that must cost neither the lock nor a health check
    curve_s: float  # at each offered rate
    rival_pools: tuple[int, ...]  # connections that the alternative is tried with, one request a transaction
    rival_batch_pools: tuple[int, ...]  # the same, batched
    log_records: int  # in the log before the first kill
    join_records: int  # in the log that a new log node gets
    kills: int  # of the whole group and of the core alone, in turn
    kills_disconnected: int
    freezes: int  # of the core alone, and as many of the whole group
    stops: int
    switchovers: int
    starts: int  # of each profile, from an empty folder
    states: tuple[int, ...]  # in the index, ascending


FULL = Sizes(
    runs=5,
    run_s=10.0,
    full_speed_s=180.0,
    curve_s=10.0,
    rival_pools=(8, 16, 32),
    rival_batch_pools=(1, 2, 4),
    log_records=1_000_000,
    join_records=10_000_000,
    kills=20,
    kills_disconnected=6,
    freezes=2,
    stops=5,
    switchovers=21,
    starts=5,
    states=(1_000_000, 3_000_000, 10_000_000, 30_000_000, 100_000_000),
)
QUICK = Sizes(
    runs=1,
    run_s=5.0,
    full_speed_s=15.0,
    curve_s=3.0,
    rival_pools=(16,),
    rival_batch_pools=(1,),
    log_records=20_000,
    join_records=500_000,
    kills=4,
    kills_disconnected=2,
    freezes=1,
    stops=1,
    switchovers=9,
    starts=2,
    states=(1_000_000, 3_000_000),
)
