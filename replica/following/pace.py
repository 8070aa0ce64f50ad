"""Decides how fast a scrub reads, from the records left, the time left and the spare capacity. Pure."""

from __future__ import annotations

from dataclasses import dataclass

AHEAD = 1.5  # times the rate that the time limit needs: the log grows, and busy hours are not known in advance
SPARE_SHARE = 0.15  # of a pass's time, kept in reserve: there the rest is read as fast as there is room
LOOP_SHARE = 0.4  # of the event loop's time, at most
RECORDS_PER_S_MAX = 20_000.0


@dataclass(frozen=True, slots=True)
class Pace:
    """Two rates in records a second: the one needed to finish in time, and the one the replica has room for."""

    wanted_per_s: float
    room_per_s: float

    @property
    def rate_per_s(self) -> float:
        """What is read."""
        return min(self.wanted_per_s, self.room_per_s)


def choose_pace(left_records: int, left_s: float, *, within_s: float, least_per_s: float, room_per_s: float) -> Pace:
    """The pace that reads the remaining records within the remaining time, never below `least_per_s`.

    `within_s`: the time for the whole pass. A pass that has only the spare time left reads as fast as there is room.
    """
    planned_s = left_s - SPARE_SHARE * within_s
    wanted_per_s = AHEAD * left_records / planned_s if planned_s > 0 else RECORDS_PER_S_MAX
    return Pace(min(max(wanted_per_s, least_per_s), max(RECORDS_PER_S_MAX, least_per_s)), room_per_s)


def room_for(*, is_busy: bool, reaches_log: bool, lag_records: int, lag_max: int, record_s: float) -> float:
    """Records a second that delay no client: 0 while clients wait or the index lags.

    `record_s`: how long one record blocks the event loop; 0 while unknown.
    """
    if is_busy or not reaches_log or lag_records > lag_max:
        return 0.0
    return LOOP_SHARE / record_s if record_s > 0 else float("inf")
