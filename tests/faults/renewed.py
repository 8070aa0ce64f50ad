"""A resource that scenarios share until one fails: the next gets a new one, so that one failure does not cause more."""

from __future__ import annotations

import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Generic, TypeVar

import pytest

from tests.faults.recorder import has_failed

T = TypeVar("T")


class Renewed(Generic[T]):
    """Makes something when it is first needed, and again after it was dropped."""

    def __init__(self, make: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._make = make
        self._stack = AsyncExitStack()
        self._made: list[T] = []

    @asynccontextmanager
    async def lent_to(self, test: pytest.Item) -> AsyncIterator[T]:
        """For one test; dropped afterwards if the test fails."""
        if not self._made:
            self._made.append(await self._stack.enter_async_context(self._make()))
        sound = False
        try:
            yield self._made[0]
            sound = not has_failed(test)
        finally:
            if not sound:
                await self.drop()

    async def drop(self) -> None:
        """End it. Errors are only printed: it may be damaged in any way."""
        self._made.clear()
        try:
            await self._stack.aclose()
        except Exception:
            traceback.print_exc()
