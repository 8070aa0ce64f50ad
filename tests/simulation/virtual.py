"""An event loop on virtual time: whole replicas run in one thread, years in seconds, the same way for the same seed.

Time moves only when nothing is ready to run, straight to the next timer. There is no I/O: a loop with nothing ready and
no timer raises Deadlock.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

_T = TypeVar("_T")
_TURNS_MAX = 50_000


class Deadlock(RuntimeError):
    """Everything waits and no timer is set."""


class Livelock(RuntimeError):
    """Tasks wake one another for ever without any passing of time."""


class _NoSelector(selectors.BaseSelector):
    """Waits by moving the clock; never has an event."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._turns = 0  # since time moved last
        self._keys: dict[object, selectors.SelectorKey] = {}

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Deadlock("nothing is ready and no timer is set")
        self._turns = 0 if timeout > 0 else self._turns + 1
        if self._turns > _TURNS_MAX:
            raise Livelock(f"{_TURNS_MAX} turns of the loop and it is still {self.now_s} s")
        self.now_s += max(0.0, timeout)
        return []

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = selectors.SelectorKey(fileobj, 0, events, data)
        self._keys[fileobj] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys

    def close(self) -> None:
        self._keys.clear()


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop; `time` is virtual seconds since it was made."""

    def __init__(self) -> None:
        self._virtual = _NoSelector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now_s


def run_virtually(work: Coroutine[Any, Any, _T]) -> _T:
    """Run to the end on virtual time. Raises what the work raises, or Deadlock."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)
