"""What scenarios share, until one of them fails."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.faults import renewed
from tests.faults.renewed import Renewed


async def test_after_a_failure_the_next_one_gets_another(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Goal: one failure does not make a row. Method: lend to tests that hold, to one that fails, and to one more."""
    failed: list[bool] = []
    monkeypatch.setattr(renewed, "has_failed", lambda test: failed.pop())
    open_ones: list[int] = []
    made = 0

    @asynccontextmanager
    async def make() -> AsyncIterator[int]:
        nonlocal made
        made += 1
        number = made
        open_ones.append(number)
        yield number
        open_ones.remove(number)
        if number == 1:
            raise RuntimeError("it was hurt and does not stop in order")

    shared = Renewed(make)
    lent = []
    for fails in (False, True, False):
        failed.append(fails)
        async with shared.lent_to(request.node) as one:
            lent.append(one)
            assert open_ones == [one]
    assert lent == [1, 1, 2]
    await shared.drop()
    await shared.drop()
    assert open_ones == []
