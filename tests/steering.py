"""Steering for tests of the admin listener: nothing may come through to the election or the participant."""

from __future__ import annotations

from typing import Any

from replica.operators.admin import Steering


class _Nobody:
    """An election and a participant that nobody must get to."""

    async def switchover(self, to: str | None = None) -> Any:
        raise AssertionError("reached")

    async def prune(self, up_to: int | None, keep_s: float) -> Any:
        raise AssertionError("reached")

    async def note(self, notes: Any) -> Any:
        raise AssertionError("reached")

    async def page(self, after: int = -1) -> Any:
        raise AssertionError("reached")


NOBODY = _Nobody()


def steering_of_nobody() -> Steering:
    """r1 beside r2, paused: a switchover is refused before anything is asked of the election."""
    return Steering("r1", ["r1", "r2"], NOBODY, lambda: True, NOBODY, registrar=NOBODY, book=NOBODY)
