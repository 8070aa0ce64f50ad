"""Log nodes as far as they see replicas' processes end: one beside each replica, on its machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from replica.log.interface import LogEnd, LogWriter
from replica.log.raft.lives import has_closed
from replica.notary.errors import LogUnavailable
from tests.simulation.doubles.log import SimulatedLog
from tests.simulation.process import Process, current_process

_LOST_SHARE = 0.3  # of the lifelines end before their process: a node ends them, or a time-out does
_SEEN_MAX_S = 0.02


class Lives:
    """The lifelines of all activations, and which of them have ended."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._loop = asyncio.get_running_loop()
        self._processes: dict[bytes, Process] = {}
        self._ended: set[bytes] = set()
        self._waiting: list[asyncio.Future[None]] = []

    def tie(self, activation_id: bytes, process: Process) -> None:
        """A claim of this process; the connection takes a moment."""
        self._soon(lambda: self._tied(activation_id, process))
        if self._random.random() < _LOST_SHARE:
            error, ended_here = self._random.choice(((TimeoutError(), False), (None, True)))
            lasts_s = self._random.uniform(0.0, 4.0)
            self._loop.call_later(lasts_s, lambda: self._lost(activation_id, error, ended_here=ended_here))

    def _tied(self, activation_id: bytes, process: Process) -> None:
        if process.alive:
            self._processes[activation_id] = process

    def close(self, activation_id: bytes) -> None:
        """The process closes the lifeline by itself."""
        self._lost(activation_id, None, ended_here=False)

    def _lost(self, activation_id: bytes, error: BaseException | None, *, ended_here: bool) -> None:
        known = self._processes.pop(activation_id, None) is not None
        if known and has_closed(error, ended_here=ended_here):
            self._soon(lambda: self._end(activation_id))

    def process_ended(self, process: Process) -> None:
        """The kernel closes what a killed process had open."""
        for activation_id, owner in list(self._processes.items()):
            if owner is process:
                self.close(activation_id)

    async def wait(self, activation_id: bytes, wait_s: float) -> bool:
        """Whether it has ended; waits for any end, but not longer."""
        if activation_id not in self._ended:
            future: asyncio.Future[None] = self._loop.create_future()
            self._waiting.append(future)
            timer = self._loop.call_later(wait_s, _finish, future)
            try:
                await future
            finally:
                timer.cancel()
        return activation_id in self._ended

    def _end(self, activation_id: bytes) -> None:
        self._ended.add(activation_id)
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            _finish(future)

    def _soon(self, action: Callable[[], None]) -> None:
        self._loop.call_later(self._random.uniform(0.0001, _SEEN_MAX_S), action)


class Lifeline:
    """What a process holds of one."""

    def __init__(self, lives: Lives, activation_id: bytes) -> None:
        self._lives = lives
        self._activation_id = activation_id

    async def close(self) -> None:
        """See Lifeline."""
        self._lives.close(self._activation_id)


class WatchedLog(SimulatedLog):
    """See WatchingLog, TimedLog. The node beside a replica can be reached whatever the network does, others cannot."""

    lives: Lives

    def tie(self, activation_id: bytes) -> Lifeline:
        """See WatchingLog."""
        process = current_process()
        assert process is not None
        self.lives.tie(activation_id, process)
        return Lifeline(self.lives, activation_id)

    async def end_and_quiet(self) -> LogEnd:
        """See TimedLog."""
        await self.travel()
        newest_at_s = self._topic.newest_at_s
        quiet_s = None if newest_at_s is None else asyncio.get_running_loop().time() - newest_at_s
        told = LogEnd(self._topic.end_offset, quiet_s)
        await self.travel()
        return told

    async def open_shared_writer(self) -> LogWriter:
        """See WatchingLog."""
        return await self.open_writer()

    async def wait_for_end(self, activation_id: bytes) -> None:
        """See WatchingLog."""
        while True:
            try:
                await self.travel()
                if await self.lives.wait(activation_id, 1.0):
                    await self.travel()
                    return
            except LogUnavailable:
                continue


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
