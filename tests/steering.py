"""Steering for tests of the admin listener: nothing may come through to the election or the participant."""

from __future__ import annotations

from collections.abc import Mapping
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


class Trail:
    """A trail that permits every act, and remembers what it was asked about."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, str], int | None]] = []

    async def check(self, act: str, details: Mapping[str, str], entry: int | None) -> None:
        self.asked.append((act, dict(details), entry))


def steering_of_nobody() -> Steering:
    """r1 beside r2, paused: a switchover is refused before anything is asked of the election."""
    return Steering("r1", ["r1", "r2"], NOBODY, lambda: True, NOBODY, registrar=NOBODY, book=NOBODY, consent=Trail())
