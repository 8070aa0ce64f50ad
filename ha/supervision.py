"""Decides what follows when a process ends by itself: one pure step for everything that keeps processes running.

The watch, the local cluster's replicas and its HAProxy, and a core with its front ends check and start processes in
different ways. They share this step.
"""

from __future__ import annotations

from dataclasses import dataclass

_DOUBLINGS_MAX = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """How a supervisor restarts a process that ended. `pause_max_s` equal to `pause_s`: the pause does not grow."""

    pause_s: float  # before the next start; doubles with each failure in a row
    pause_max_s: float
    person_code: int | None = None  # the exit code that means: a person is needed first; None: it has no such code


@dataclass(frozen=True, slots=True)
class StartAgain:
    """Start it again at `at_s`, which is `pause_s` from now; it has now failed `failures` times in a row."""

    at_s: float
    pause_s: float
    failures: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Leave it down: a restart does not help before a person has changed something."""


def after_end(exit_code: int | None, failures: int, now_s: float, policy: RestartPolicy) -> StartAgain | GiveUp:
    """Decide what follows an end. `failures`: how often in a row it had failed before; `now_s` on any clock."""
    if exit_code is not None and exit_code == policy.person_code:
        return GiveUp()
    return after_failure(failures, now_s, policy)


def after_failure(failures: int, now_s: float, policy: RestartPolicy) -> StartAgain:
    """What follows an end, or a start that failed, which no person is needed for."""
    wait_s = pause_s(failures + 1, policy)
    return StartAgain(now_s + wait_s, wait_s, failures + 1)


def pause_s(failures: int, policy: RestartPolicy) -> float:
    """How long to wait after so many failures in a row."""
    return min(policy.pause_s * 2.0 ** min(max(0, failures - 1), _DOUBLINGS_MAX), policy.pause_max_s)
