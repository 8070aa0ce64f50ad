"""Processes that can be stopped and killed between any two awaits, as SIGSTOP and SIGKILL would.

A process owns its first task, and all tasks that its tasks start. Each step of such a task passes a gate. A stopped
process takes no step until it goes on; a killed one never takes another, not even those of a `finally`.
"""

from __future__ import annotations

import asyncio
import warnings
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextvars import ContextVar, copy_context
from itertools import count
from typing import Any

_CURRENT: ContextVar[Process | None] = ContextVar("simulated process", default=None)


def current_process() -> Process | None:
    """The process whose code runs; None for the world outside."""
    return _CURRENT.get()


class SimulatedTask(asyncio.Task[Any]):
    """A task whose place in sets depends on when it was made, never on its address, so that runs can be repeated."""

    numbers: Iterator[int] = count()

    def __init__(self, *args: Any, **options: Any) -> None:
        self._number = next(SimulatedTask.numbers)
        super().__init__(*args, **options)

    def __hash__(self) -> int:
        return self._number


def make_task(
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], context: Any = None
) -> asyncio.Task[Any]:
    """The task factory of a simulated loop."""
    process = _CURRENT.get() if context is None else context.get(_CURRENT)
    if process is None:
        return SimulatedTask(work, loop=loop, context=context)
    task = SimulatedTask(_Gated(work, process), loop=loop, context=context)
    process.owns(task)
    return task


class Process:
    """One run of a program, from its start to its end."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.stopped = False
        self.on_step: Callable[[], None] | None = None  # called after each step of each task
        self._loop = asyncio.get_running_loop()
        self._tasks: list[asyncio.Task[Any]] = []
        self._waiting: list[asyncio.Future[None]] = []  # steps that a stopped process has not taken
        self._arrived: deque[Callable[[], object]] = deque()  # what arrived while it was stopped
        self._buried: list[Coroutine[Any, Any, Any]] = []

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start the first task."""
        context = copy_context()
        context.run(_CURRENT.set, self)
        return self._loop.create_task(work, context=context)

    def deliver(self, action: Callable[[], object]) -> None:
        """Deliver something from outside: now, when the process continues, or never."""
        if not self.alive:
            return
        if self.stopped:
            self._arrived.append(action)
            return
        context = copy_context()
        context.run(_CURRENT.set, self)
        context.run(action)
        if self.on_step is not None:
            self.on_step()

    def stop(self) -> None:
        """SIGSTOP."""
        self.stopped = True

    def go_on(self) -> None:
        """SIGCONT."""
        if not self.stopped:
            return
        self.stopped = False
        self._wake()
        while self._arrived and not self.stopped:  # what arrives may stop it again
            self.deliver(self._arrived.popleft())

    def kill(self) -> None:
        """SIGKILL."""
        self.alive, self.on_step = False, None
        self._arrived.clear()
        self._wake()
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()

    def bury(self) -> None:
        """Release a killed process' frames, once nothing that they do can affect the run."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # some were never started
            for work in self._buried:
                for _ in range(3):  # a `finally` that waits is closed again
                    try:
                        work.close()
                    except RuntimeError:
                        continue
                    break
        self._buried.clear()

    def owns(self, task: asyncio.Task[Any]) -> None:
        """Note a task of this process; those that are done are forgotten now and then."""
        self._tasks.append(task)
        if len(self._tasks) > 64:
            self._tasks = [task for task in self._tasks if not task.done()]

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for step in waiting:
            if not step.done():
                step.set_result(None)


class _Gated(Coroutine[Any, Any, Any]):
    """A coroutine that takes its steps only while its process runs."""

    __slots__ = ("__weakref__", "_error", "_process", "_work")

    def __init__(self, work: Coroutine[Any, Any, Any], process: Process) -> None:
        self._work = work
        self._process = process
        self._error: BaseException | None = None  # thrown while the process was stopped

    def send(self, value: Any) -> Any:
        process = self._process
        if process.stopped or not process.alive:
            return self._hold()
        if self._error is not None:
            error, self._error = self._error, None
            result = self._work.throw(error)
        else:
            result = self._work.send(value)
        if process.on_step is not None:
            process.on_step()
        return result

    def throw(self, kind: Any, value: Any = None, traceback: Any = None) -> Any:
        error = kind if value is None else value
        if self._process.stopped or not self._process.alive:
            self._error = error
            return self._hold()
        result = self._work.throw(error)
        if self._process.on_step is not None:
            self._process.on_step()
        return result

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Any:
        raise TypeError("for tasks only")

    def _hold(self) -> Any:
        process = self._process
        if not process.alive:
            process._buried.append(self._work)
            raise asyncio.CancelledError
        step = process._loop.create_future()
        process._waiting.append(step)
        step._asyncio_future_blocking = True  # type: ignore[attr-defined]  # what `await` on a future says to its task
        return step
