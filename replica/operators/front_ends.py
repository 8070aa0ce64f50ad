"""Starts the front-end processes of a replica and keeps them running; they end with their core.

One that hangs is alive and connected, and takes connections that it never answers. What shows it is its silence.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import Callable, Mapping, Sequence

import structlog

from ha.clock import Clock
from ha.supervision import GiveUp, RestartPolicy, after_end
from replica.link.settings import LinkSettings
from replica.link.unix_server import LinkServer
from replica.notary.errors import ConfigError
from replica.notary.exit_codes import EXIT_CONFIGURATION
from replica.notary.tasks import cancelled

log = structlog.get_logger()

_RESTARTS = RestartPolicy(person_code=EXIT_CONFIGURATION, pause_s=0.2, pause_max_s=0.2)
_STOP_SLACK_S = 0.5  # for a front end to end once it has drained
_LOOK_S = 0.2
UNCONNECTED_MAX_S = 60.0  # from its start until it is connected, and from the end of its link until its own


class FrontEnds:
    """`count` processes started from one command; each gets its own document on standard input."""

    def __init__(
        self,
        argv: Sequence[str],
        count: int,
        document: Callable[[int], Mapping[str, object]],
        clock: Clock,
        link: LinkServer,
        *,
        drain_max_s: float,
    ) -> None:
        """`link`: hears them. `drain_max_s`: how long one that is asked to stop may wait for answers under way."""
        self._stop_max_s = drain_max_s + _STOP_SLACK_S
        self._argv = tuple(argv)
        self._count = count
        self._document = document
        self._clock = clock
        self._link = link
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self.restarts = 0

    @property
    def pids(self) -> list[int]:
        """Process ids of those that run, by number."""
        return [process.pid for _, process in sorted(self._processes.items()) if process.returncode is None]

    async def run(self) -> None:
        """Keep all running until cancelled. Raises ConfigError when one cannot run as it is configured."""
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(self._count):
                    group.create_task(self._keep(number), name=f"front_end_{number}")
        except* ConfigError as errors:
            raise errors.exceptions[0] from None
        finally:
            await self._stop()

    def reload(self) -> None:
        """Have every front end read its token keys and certificates again."""
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGHUP)

    async def _keep(self, number: int) -> None:
        while True:
            process = await asyncio.create_subprocess_exec(*self._argv, stdin=asyncio.subprocess.PIPE)
            self._processes[number] = process
            document = self._document(number)
            watch = asyncio.create_task(self._kill_when_hung(process, str(document["name"])))
            try:
                await process.communicate(json.dumps(document).encode())
            finally:
                await cancelled(watch)
            hung = watch.done() and not watch.cancelled()
            after = after_end(process.returncode, 0, self._clock.boottime_s(), _RESTARTS)
            if isinstance(after, GiveUp):
                raise ConfigError("a front end cannot run as configured; its last log line says why")
            self.restarts += 1
            if not hung:
                log.warning("front_end_ended", number=number, exit_code=process.returncode)
            await self._clock.sleep_s(after.pause_s)

    async def _kill_when_hung(self, process: asyncio.subprocess.Process, name: str) -> None:
        """Return once it was killed."""
        unconnected_s = 0.0
        while True:
            await self._clock.sleep_s(_LOOK_S)
            silent_s = self._link.silence_s(name)
            unconnected_s = 0.0 if silent_s is not None else unconnected_s + _LOOK_S
            if hangs(silent_s, unconnected_s, bool(self._link.front_ends), self._link.settings):
                log.error("front_end_hangs", front_end=name, silent_s=silent_s, unconnected_s=unconnected_s)
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                return

    async def _stop(self) -> None:
        running = [process for process in self._processes.values() if process.returncode is None]
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        for process in running:
            try:
                async with asyncio.timeout(self._stop_max_s):
                    await process.wait()
            except TimeoutError:
                process.kill()
                await process.wait()


def hangs(silent_s: float | None, unconnected_s: float, any_counts: bool, settings: LinkSettings) -> bool:
    """Whether a front end is to be started anew: silent for too long, or not connected for far too long.

    Where none counts the replica answers nobody, and waiting keeps no session: then one that does not count is enough.
    """
    if silent_s is None:
        return unconnected_s >= UNCONNECTED_MAX_S
    return silent_s >= (settings.front_end_hung_s if any_counts else settings.front_end_silent_s)
