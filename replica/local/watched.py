"""A replica of this machine under `notary watch`: a child process, or the operator's own commands."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ha.watch.driver import ActFailed, WatchedReplica
from ha.watch.settings import WatchSettings
from haproxy.render import ReplicaAddress
from replica.local.process import Command, ManagedProcess, run_to_end
from replica.notary.errors import NotaryError


def watched_replica(
    address: ReplicaAddress, argv: Sequence[str], log_path: Path, settings: WatchSettings
) -> WatchedReplica:
    """The watched replica. `argv` runs it in the foreground, unless configured commands start and stop it."""
    live_url = f"http://{address.host}:{address.health_port}/health/live"
    return WatchedReplica(address.name, live_url, _Hands(address.name, argv, log_path), settings)


class _Hands:
    """See `ha.watch.driver.Hands`."""

    def __init__(self, name: str, argv: Sequence[str], log_path: Path) -> None:
        self._log_path = log_path
        # it steps down in order when the watch itself is gone, so that no replica runs without a watch
        command = Command(name=name, argv=argv, log_path=log_path, death_signal=signal.SIGTERM)
        self._child = ManagedProcess(command)

    @property
    def running(self) -> bool:
        return self._child.running

    @property
    def returncode(self) -> int | None:
        return self._child.returncode

    def start(self) -> None:
        with _explained():
            self._child.start()

    def terminate(self) -> None:
        self._child.signal_leader(signal.SIGTERM)

    async def kill(self) -> None:
        await self._child.kill()

    async def stop(self, stop_max_s: float) -> None:
        await self._child.stop(stop_max_s)

    async def run(self, argv: Sequence[str], run_max_s: float) -> None:
        with _explained():
            await run_to_end(Command(name=argv[0], argv=argv, log_path=self._log_path), run_max_s)


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except NotaryError as error:
        raise ActFailed(error.detail) from error
