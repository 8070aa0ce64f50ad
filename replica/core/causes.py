"""Why a replica stopped leading, as one of few words: a metric's label must not carry numbers and names."""

from __future__ import annotations

_CAUSES = (  # how a reason begins, and its cause; the first that fits
    ("stop", "stop"),
    ("switchover", "switchover"),
    ("activation failed", "activation_failed"),
    ("the activation took more than", "activation_failed"),
    ("no answer on the lock session", "no_answer"),
    ("the clock differs", "clock"),
    ("the wall clock jumped", "clock"),
    ("a higher barrier is in force", "superseded"),
    ("record ", "log_stalled"),
    ("the log ", "log_stalled"),
)
LOST = "lock_lost"  # whatever else ends a reign is the lock session's end
ALL = tuple(dict.fromkeys([*(cause for _, cause in _CAUSES), LOST]))


def cause_of(reason: str) -> str:
    """The cause of a step-down for that reason."""
    return next((cause for beginning, cause in _CAUSES if reason.startswith(beginning)), LOST)
