"""A process of a local cluster that is started again when it ends by itself, unless a person is needed first."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

from ha.supervision import GiveUp, RestartPolicy, after_end
from replica.local.process import Command, ManagedProcess, how_it_ended
from replica.notary.exit_codes import EXIT_CONFIGURATION
from replica.notary.tasks import cancelled

STOP_GRACE_S = 10.0  # an orderly end is much shorter; then it is killed
RESTART_PAUSE_S = 2.0  # as a service manager's: long enough that starting does not slow down the peer that takes over

Say = Callable[[str, str], None]
"""Takes the name of a part of the cluster, and a message about it."""


class KeptProcess:
    """Runs a command and keeps it running. Faults on purpose are for tests, the demo and the bench."""

    def __init__(self, command: Command, say: Say) -> None:
        self.name = command.name
        self.log_path: Path = command.log_path
        self.restart_pause_s = RESTART_PAUSE_S
        self.on_start: Callable[[], None] = lambda: None  # called after each start: the process id is another one
        self.ended_unasked: list[str] = []  # how, and the end of its log, for each end that was not requested
        self._process = ManagedProcess(command)
        self._end_asked = False
        self._say = say
        self._keeper: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        """Process id of the first process, also the id of the group."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """True while there is one, also a frozen one."""
        return self._process.running

    def start(self) -> None:
        """Start it, and restart it whenever it ends by itself. Nothing happens if it is kept running already."""
        if self._keeper is None or self._keeper.done():
            self._begin()
            self._keeper = asyncio.create_task(self._keep(), name=f"keep_{self.name}")

    async def stop(self) -> None:
        """Stop it in order, by SIGTERM, and leave it down. May be repeated."""
        await self._leave_down()
        await self._process.stop(STOP_GRACE_S)

    async def kill(self) -> None:
        """SIGKILL for all of it at once, and leave it down, as if the machine lost power. May be repeated."""
        await self._leave_down()
        await self._process.kill()

    def kill_group(self) -> None:
        """SIGKILL for all of it at once, as if the machine died. It comes back after `restart_pause_s`."""
        self._end_asked = True
        self._process.signal_group(signal.SIGKILL)

    def terminate(self) -> None:
        """SIGTERM: an orderly end. It comes back after `restart_pause_s`."""
        self._end_asked = True
        self._process.signal_leader(signal.SIGTERM)

    def freeze_group(self) -> None:
        """SIGSTOP for all of it, as if the machine hung."""
        self._process.signal_group(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT for whatever is frozen."""
        self._process.signal_group(signal.SIGCONT)

    def log_tail(self) -> str:
        """The last lines of its log."""
        return self._process.log_tail()

    async def _leave_down(self) -> None:
        """Do not start it again; what ends from now on was asked to."""
        if self._keeper is not None:
            await cancelled(self._keeper)
            self._keeper = None
        code = self._process.returncode
        if code is not None:  # it may have ended a moment before
            self._note_end(code)
        self._end_asked = True

    async def _keep(self) -> None:
        while True:
            code = await self._process.wait()
            self._note_end(code)
            await self._process.kill()  # what is left of the group
            after = after_end(code, 0, asyncio.get_running_loop().time(), self._restarts())
            if isinstance(after, GiveUp):
                self._say(self.name, f"cannot run, a person is needed; the end of {self.log_path}:\n{self.log_tail()}")
                return
            self._say(self.name, f"{how_it_ended(code)}; starts again in {after.pause_s:g} s")
            await asyncio.sleep(after.pause_s)
            self._begin()

    def _restarts(self) -> RestartPolicy:
        pause_s = self.restart_pause_s
        return RestartPolicy(person_code=EXIT_CONFIGURATION, pause_s=pause_s, pause_max_s=pause_s)

    def _begin(self) -> None:
        self._end_asked = False
        self._process.start()
        self.on_start()

    def _note_end(self, code: int) -> None:
        """Note each end once: an end that was noted counts as requested from then on."""
        if not self._end_asked:
            self.ended_unasked.append(f"{self.name} {how_it_ended(code)}; the end of its log:\n{self.log_tail()}")
        self._end_asked = True
