"""One server process of a local cluster: start it, wait until it is ready, stop it, or hurt it on purpose.

Every process leads a session, and so a process group, of its own: a signal to the group reaches its children as well.
It carries a parent-death signal, so that it ends when the supervisor does, however the supervisor ends. Linux only.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from replica.notary.codes import Code
from replica.notary.errors import NotaryError

PROBE_INTERVAL_S = 0.05
LOG_TAIL_LINES = 20
LOG_TAIL_BYTES_MAX = 16_384

Probe = Callable[[], Awaitable[bool]]


class ServerFailed(NotaryError):
    """A server did not start, or ended by itself. The detail holds the end of its log; a person must look."""

    default_code = Code.LOCAL_SERVER_FAILED


class ServerEnded(ServerFailed):
    """It ended by itself, which is worse than being late."""


class SoftwareMissing(NotaryError):
    """A program that the local cluster needs is not on this machine."""

    default_code = Code.LOCAL_SOFTWARE_MISSING


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command to run. `user`: the account to run it as, which only root may choose; None: the present one."""

    name: str
    argv: Sequence[str]
    log_path: Path  # standard output and error, appended
    user: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)  # on top of our own environment
    cwd: Path | None = None
    enter: Sequence[str] = ()  # a prefix that runs the command elsewhere by exec, such as nsenter's
    death_signal: signal.Signals = signal.SIGKILL  # sent by the kernel when the supervisor is gone

    def full_argv(self) -> list[str]:
        """The command with `setpriv` in front, which changes the user, then requests the parent-death signal.

        The order matters: a change of user clears the signal. It is a separate program, because Python code between
        fork and exec may deadlock once librdkafka's threads run.
        """
        account = [f"--reuid={self.user}", f"--regid={self.user}", "--init-groups"] if self.user else []
        death = f"--pdeathsig={self.death_signal.name.removeprefix('SIG')}"
        return [*self.enter, "setpriv", *account, death, "--", *self.argv]


class ManagedProcess:
    """A running command. Not bound to an event loop, so a test session may start it in one and stop it in another.

    Start it from a thread that outlives it: the parent-death signal is tied to the thread that started the process.
    """

    def __init__(self, command: Command) -> None:
        self.command = command
        self._popen: subprocess.Popen[bytes] | None = None
        self._swept = True  # nothing of the group is left, so its id may belong to strangers

    @property
    def pid(self) -> int:
        """Process id, also the id of the process group. Raises ServerFailed if never started."""
        return self._started().pid

    @property
    def returncode(self) -> int | None:
        """Exit code of the leader, negative for a signal; None while it runs or before it was started."""
        return None if self._popen is None else self._popen.poll()

    @property
    def running(self) -> bool:
        """True while the leader has not ended; a stopped (SIGSTOP) process counts as running."""
        return self._popen is not None and self._popen.poll() is None

    def start(self) -> None:
        """Start the command. Raises ServerFailed if it is running already, SoftwareMissing if nothing can be run."""
        if self.running:
            raise ServerFailed(f"{self.command.name} is running already, as process {self.pid}")
        self.command.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.command.log_path.open("ab") as log:
            try:
                self._popen = subprocess.Popen(
                    self.command.full_argv(),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    env={**os.environ, **self.command.env},
                    cwd=self.command.cwd,
                )
                self._swept = False
            except OSError as error:
                raise SoftwareMissing(f"{self.command.name} cannot be started: {error}") from error

    async def wait_ready(self, probe: Probe, timeout_s: float) -> None:
        """Ask `probe` until it says True. Otherwise end the process and raise ServerFailed with the end of its log."""
        problem, kind = None, ServerFailed
        try:
            async with asyncio.timeout(timeout_s):
                await until(probe, unless=lambda: not self.running)
            if not self.running:
                problem, kind = f"ended with code {self.returncode} before it was ready", ServerEnded
        except TimeoutError:
            problem = f"was not ready within {timeout_s:g} s"
        if problem is not None:
            await self.kill()
            raise kind(f"{self.command.name} {problem}; the end of {self.command.log_path}:\n{self.log_tail()}")

    async def wait(self) -> int:
        """Wait for the leader's end and return its exit code (negative: the signal that ended it)."""
        popen = self._started()
        if popen.poll() is None:
            await _wait_for_exit(popen.pid)
        return popen.wait()

    async def stop(self, grace_s: float = 10.0, first: signal.Signals = signal.SIGTERM) -> None:
        """Ask the leader to end; after `grace_s`, or when it has ended, kill what is left. May repeat."""
        if self.running:
            self.signal_tree(signal.SIGCONT)
            self.signal_leader(first)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await self.wait()
        await self.kill()

    async def kill(self) -> None:
        """SIGKILL for the leader, its descendants and what is left of the group; returns when the leader has ended."""
        if not self._swept:
            self.signal_tree(signal.SIGKILL)
            self.signal_group(signal.SIGKILL)
            await self.wait()
            self._swept = True

    def signal_group(self, number: signal.Signals) -> None:
        """Send a signal, such as SIGSTOP or SIGCONT, to the whole group; nothing happens if it is gone."""
        if not self._swept:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def signal_tree(self, number: signal.Signals) -> None:
        """Send a signal to the leader and all its descendants, also those, like Postgres's, in groups of their own."""
        if self.running:
            before = descendants(self.pid)  # a killed leader is no longer the parent of any process
            self.signal_leader(number)
            for pid in {*before, *descendants(self.pid)}:  # and one that is stopped makes no more children
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def signal_leader(self, number: signal.Signals) -> None:
        """Send a signal to the leader alone; nothing happens if it has ended."""
        self._started().send_signal(number)

    def log_tail(self) -> str:
        """The last lines of the log, for an error message."""
        return log_tail(self.command.log_path)

    def _started(self) -> subprocess.Popen[bytes]:
        if self._popen is None:
            raise ServerFailed(f"{self.command.name} was never started")
        return self._popen


async def until(probe: Probe, unless: Callable[[], bool] = lambda: False) -> None:
    """Ask `probe` every PROBE_INTERVAL_S until it says True, or `unless` does. The caller sets the time limit."""
    while not unless() and not await probe():  # noqa: ASYNC110 - another process cannot set an asyncio.Event
        await asyncio.sleep(PROBE_INTERVAL_S)


async def run_to_end(command: Command, timeout_s: float) -> None:
    """Run a command that ends by itself, such as a formatter. Raises ServerFailed on a non-zero code or a timeout."""
    process = ManagedProcess(command)
    process.start()
    try:
        async with asyncio.timeout(timeout_s):
            code = await process.wait()
    except TimeoutError:
        raise ServerFailed(f"{command.name} took longer than {timeout_s:g} s:\n{process.log_tail()}") from None
    finally:
        await process.kill()
    if code != 0:
        raise ServerFailed(f"{command.name} ended with code {code}:\n{process.log_tail()}")


def how_it_ended(code: int) -> str:
    """What an exit code says, for people; negative: the signal that ended it."""
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"


def descendants(pid: int) -> list[int]:
    """Children, grandchildren and so on of a process, as far as they are there at this moment."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for child in map(int, task.read_text().split()):
                found += [child, *descendants(child)]
    return found


def log_tail(path: Path, lines: int = LOG_TAIL_LINES) -> str:
    """The last `lines` lines of a log file, or a remark that there is none; reads at most LOG_TAIL_BYTES_MAX bytes."""
    try:
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - LOG_TAIL_BYTES_MAX))
            text = log.read().decode(errors="replace")
    except FileNotFoundError:
        return "(no log)"
    return "\n".join(text.splitlines()[-lines:]) or "(the log is empty)"


async def _wait_for_exit(pid: int) -> None:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    fd = os.pidfd_open(pid)
    try:
        loop.add_reader(fd, ended.set)
        await ended.wait()
    finally:
        loop.remove_reader(fd)
        os.close(fd)
