"""`notary watch` as a process of its own, over replicas of a local cluster in place of the cluster's own keepers."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from replica.local.cluster import LocalCluster
from replica.local.machine import THIS_MACHINE, Machine
from replica.local.process import Command, ManagedProcess, ServerFailed
from tests.waiting import eventually

BACK_MAX_S = 60.0
STOP_MAX_S = 30.0  # longer than the watch gives its replicas


class RunningWatch:
    """The watch over these replicas of a cluster. What it says is appended to `log_path`."""

    def __init__(self, cluster: LocalCluster, *names: str, machine: Machine = THIS_MACHINE) -> None:
        self.names = names
        self.log_path = cluster.folder / f"watch-{'-'.join(names)}.log"
        options = [word for name in names for word in ("--name", name)]
        argv = [sys.executable, "-m", "replica.cli", "watch", "--config", str(cluster.config_path), *options]
        command = Command(name="watch", argv=argv, log_path=self.log_path, enter=machine.enter)
        self._process = ManagedProcess(command)
        self._cluster = cluster
        self._said_before = self.log_path.stat().st_size if self.log_path.exists() else 0

    def start(self) -> None:
        """Run it."""
        self._process.start()

    async def stop(self) -> None:
        """Ask it to end, as Ctrl-C does: it stops its replicas in order. May be repeated."""
        await self._process.stop(STOP_MAX_S)

    async def kill(self) -> None:
        """SIGKILL for the watch alone."""
        self._process.signal_leader(signal.SIGKILL)
        await self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        """A signal for the watch alone."""
        self._process.signal_leader(number)

    def core(self, name: str) -> int:
        """Process id of a replica's core, which leads a process group. Raises ServerFailed when none runs."""
        found = self._core(name)
        if found is None:
            raise ServerFailed(f"the watch runs no {name}; what it said:\n{self.said()}")
        return found

    async def started_again(self, name: str, former: int, timeout_s: float = BACK_MAX_S) -> int:
        """Wait until the replica runs in another process and could take over; its process id."""

        async def another() -> bool:
            return self._core(name) not in (None, former)

        await eventually(another, timeout_s)
        await self._cluster.wait_until_ready([name], timeout_s)
        return self.core(name)

    def said(self) -> str:
        """What it has told its operator so far."""
        with self.log_path.open("rb") as log:
            log.seek(self._said_before)
            return log.read().decode()

    def _core(self, name: str) -> int | None:
        for pid in _children(self._process.pid):
            words = _argv(pid)
            if "replica" in words and words[-2:] == ["--name", name]:
                return pid
        return None


@asynccontextmanager
async def watched(cluster: LocalCluster, *watches: RunningWatch) -> AsyncIterator[None]:
    """While the block runs, these watches keep the replicas that they name; before and after it the cluster does."""
    names = [name for watch in watches for name in watch.names]
    await asyncio.gather(*(cluster.replicas[name].stop() for name in names))
    try:
        for watch in watches:
            watch.start()
        await cluster.wait_until_ready(names)
        yield
    finally:
        await asyncio.gather(*(watch.stop() for watch in watches))
        for name in names:
            cluster.replicas[name].start()
        await cluster.wait_until_ready(names)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        found += map(int, task.read_text().split())
    return found


def _argv(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode().rstrip("\0").split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return []
