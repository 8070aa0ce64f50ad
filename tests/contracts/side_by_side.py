"""Two worlds, a double's and another's, that are asked the same: the common part of the contracts' state machines."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, Generic, TypeVar

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from ha.errors import HaError
from ha.invariant import InvariantBroken
from replica.notary.errors import NotaryError

W = TypeVar("W")
Make = Callable[[], AbstractAsyncContextManager[W]]
"""A new world, which nobody has used."""


class SideBySide(RuleBasedStateMachine, Generic[W]):
    """A rule asks both worlds with `same`, one after the other, and fails when they answer otherwise."""

    def __init__(self, double: Make[W], other: Make[W]) -> None:
        super().__init__()
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)  # the tests' own loop stays the current one
        self._made = AsyncExitStack()
        self.worlds = [self.run(self._made.enter_async_context(make())) for make in (double, other)]

    def run(self, call: Awaitable[Any]) -> Any:
        """What it returns. Between two calls nothing runs."""

        async def awaited() -> Any:
            return await call

        return self._runner.run(awaited())

    def same(self, ask: Callable[[W], Awaitable[Any]], *expected: Any) -> Any:
        """The answer of both; it is `expected` if that is given. An error is one, too, by its class and code."""
        ours, theirs = (self.run(_answer(ask(world))) for world in self.worlds)
        assert ours == theirs, f"the double answers {ours!r}, the other one {theirs!r}"
        assert not expected or (ours,) == expected, f"both answer {ours!r}"
        return ours

    def teardown(self) -> None:
        """Close both worlds."""
        self.run(self._made.aclose())
        self._runner.close()


async def _answer(call: Awaitable[Any]) -> Any:
    try:
        return await call
    except (HaError, NotaryError, InvariantBroken, OSError) as error:
        return type(error), getattr(error, "code", None)


def played(machine: Callable[[], SideBySide[Any]], *, examples: int, steps: int) -> None:
    """Play so many sequences of calls, the same ones in every run. A failure prints the shortest calls that show it."""
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,
            database=None,
            print_blob=True,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        ),
    )
