"""A job that follows the log as a service: what it tries again, and what ends it."""

from __future__ import annotations

import pytest

from pipeline.follow import RETRY_MAX_S, Succeeded, keep_following, retry_delay_s
from replica.notary.codes import Code
from replica.notary.errors import LogRefused, LogUnavailable, NotaryError, PlaceUnavailable


def test_delays_grow_and_are_bounded() -> None:
    """Goal: an outage costs few attempts, and its end is met within a minute. Method: the first, the millionth."""
    assert [retry_delay_s(failures) for failures in (1, 2, 3, 7, 10**6)] == [1.0, 2.0, 4.0, RETRY_MAX_S, RETRY_MAX_S]


def test_what_may_pass_is_tried_again_and_what_needs_a_person_ends_the_job() -> None:
    """Goal: the service survives what passes. Method: failures, a success, a failure again, then another log."""
    plan: list[int | NotaryError] = [
        PlaceUnavailable("disk full"),
        LogUnavailable("away"),
        7,
        PlaceUnavailable("disk full"),
        LogRefused("another log", Code.LOG_MISMATCH),
    ]
    reached: list[int] = []
    failures: list[tuple[str, float]] = []
    slept_s: list[float] = []

    def attempt(succeeded: Succeeded) -> None:
        step = plan.pop(0)
        if isinstance(step, int):
            succeeded(step)
            step = LogUnavailable("later")
        raise step

    def sleep(delay_s: float) -> None:
        slept_s.append(delay_s)

    with pytest.raises(LogRefused):
        keep_following(
            attempt, reached.append, lambda error, delay_s: failures.append((error.code.name, delay_s)), sleep
        )
    assert reached == [7]
    assert failures == [
        ("PLACE_UNAVAILABLE", 1.0),
        ("LOG_UNAVAILABLE", 2.0),
        ("LOG_UNAVAILABLE", 1.0),  # after a success the first delay again
        ("PLACE_UNAVAILABLE", 2.0),
    ]
    assert slept_s == [delay_s for _, delay_s in failures]
