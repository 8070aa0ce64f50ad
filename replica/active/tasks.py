"""The tasks of an activation: each writes to the database over the lock session, or watches."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

from ha.ending import Cause
from ha.errors import HaError, LockLost
from replica.active.endings import ending_of
from replica.active.parts import Parts
from replica.notary.errors import StoreUnavailable
from replica.notary.tasks import cancelled


class SessionTasks:
    """Starts the tasks, and reports the error that ends one. `session_over`: nothing more can be written."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._tasks: list[asyncio.Task[None]] = []
        self.session_over = False

    def start(self, work: Coroutine[object, object, None], name: str) -> None:
        """Run some work beside the rest."""
        self._tasks.append(asyncio.create_task(self._run(work), name=name))

    @property
    def started(self) -> bool:
        """Whether there are any."""
        return bool(self._tasks)

    async def end(self) -> None:
        """Wait for tasks that were asked to stop: one that is cancelled inside a statement closes the lock session."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=self._parts.settings.drain_answers_s)
            await cancelled(*late)

    async def _run(self, work: Coroutine[object, object, None]) -> None:
        try:
            await work
        except LockLost:  # the session reports its own end to the election; a second report could contradict it
            self.session_over = True
        except (HaError, StoreUnavailable) as error:  # the session lives, and the server takes no writes any more
            self.session_over = True
            self._parts.step_down(ending_of(error, Cause.STORE_REFUSED))
        except Exception as error:  # a bug or bad data: the process must end
            self._parts.fail(error)
