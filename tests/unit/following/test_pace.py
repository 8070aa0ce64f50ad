"""How fast a scrub reads: in time where there is room, never more than the room, least rate where nothing presses."""

from __future__ import annotations

import pytest

from replica.following.pace import AHEAD, LOOP_SHARE, RECORDS_PER_S_MAX, Pace, choose_pace, room_for

DAY_S = 86_400.0
WEEK_S = 7 * DAY_S
INFINITY = float("inf")


@pytest.mark.parametrize(
    ("left", "left_s", "room_per_s", "rate_per_s"),
    [
        (1_000, WEEK_S, INFINITY, 100.0),  # a small log: the least rate
        (432_000_000, WEEK_S, INFINITY, AHEAD * 432_000_000 / (0.85 * WEEK_S)),
        (432_000_000, WEEK_S, 50.0, 50.0),  # room goes before time
        (432_000_000, WEEK_S, 0.0, 0.0),
        (1, 0.0, INFINITY, RECORDS_PER_S_MAX),  # late: all there is
        (1, -5.0, 700.0, 700.0),
        (0, WEEK_S, INFINITY, 100.0),
        (10**12, 60.0, INFINITY, RECORDS_PER_S_MAX),
    ],
)
def test_the_rate_follows_from_records_time_and_room(
    left: int, left_s: float, room_per_s: float, rate_per_s: float
) -> None:
    """Goal: each of the three decides where it is the tightest. Method: one case of each."""
    pace = choose_pace(left, left_s, within_s=WEEK_S, least_per_s=100.0, room_per_s=room_per_s)
    assert pace.rate_per_s == pytest.approx(rate_per_s)


@pytest.mark.parametrize("busy_hours", [0, 4, 10])
@pytest.mark.parametrize("grows_per_s", [0.0, 500.0, 5_000.0])
def test_a_pass_ends_in_time_although_the_log_grows_and_days_are_busy(busy_hours: int, grows_per_s: float) -> None:
    """Goal: whole passes within a week at full speed. Method: 432 million records, growth, hours a day without room;
    the old rate of 100 a second would take 50 days for the first of them."""
    left, now_s, tick_s = 432_000_000.0, 0.0, 60.0
    while left > 0:
        room_per_s = 0.0 if (now_s % DAY_S) < busy_hours * 3_600.0 else INFINITY
        pace = choose_pace(int(left), WEEK_S - now_s, within_s=WEEK_S, least_per_s=100.0, room_per_s=room_per_s)
        left += (grows_per_s - pace.rate_per_s) * tick_s
        now_s += tick_s
        assert now_s <= WEEK_S, f"{left:.0f} left"


def test_there_is_no_room_while_others_need_the_replica() -> None:
    """Goal: nothing is taken from clients, nor from catching up. Method: each reason alone; then the loop's share."""
    free = {"is_busy": False, "reaches_log": True, "lag_records": 0, "lag_max": 1_000, "record_s": 20e-6}
    assert room_for(**free) == pytest.approx(LOOP_SHARE / 20e-6)  # type: ignore[arg-type]
    for need in ({"is_busy": True}, {"reaches_log": False}, {"lag_records": 1_001}):
        assert room_for(**{**free, **need}) == 0.0  # type: ignore[arg-type]
    assert room_for(**{**free, "record_s": 0.0}) == INFINITY  # type: ignore[arg-type]


def test_what_is_wanted_is_told_although_there_is_no_room() -> None:
    """Goal: the alert can show that a pass will be late. Method: a busy replica's pace."""
    pace = choose_pace(7_000_000, WEEK_S, within_s=WEEK_S, least_per_s=0.0, room_per_s=0.0)
    assert pace == Pace(pytest.approx(AHEAD * 7_000_000 / (0.85 * WEEK_S)), 0.0)  # type: ignore[arg-type]
