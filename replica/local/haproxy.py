"""A real HAProxy of our own on loopback: checked before it starts, reloaded without losing a connection."""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

from ha.supervision import RestartPolicy, after_failure
from haproxy.render import HaproxySettings, write
from haproxy.runtime import HaproxyRuntime, ServerState
from replica.local.machine import THIS_MACHINE, Machine
from replica.local.process import Command, ManagedProcess, ServerFailed, SoftwareMissing, how_it_ended, run_to_end
from replica.notary.errors import NotaryError
from replica.notary.socket_paths import check_socket_path

READY_MAX_S = 10.0
RESTARTS = RestartPolicy(pause_s=0.1, pause_max_s=2.0)
CHECK_MAX_S = 10.0
RELOAD_MAX_S = 10.0
STOP_GRACE_S = 5.0
SOCKET_PATH_MAX = 90  # HAProxy adds a suffix for a moment, and the kernel takes 107 characters
STATS_SOCKET = "admin.sock"
NO_STATE = "1\n"  # the version of the server-state file, and no server


class HaproxyServer:
    """HAProxy in master-worker mode. A reload starts a new worker on the same sockets; the old one finishes."""

    def __init__(self, folder: Path, settings: HaproxySettings, machine: Machine = THIS_MACHINE) -> None:
        check_socket_path(Path(settings.stats_socket), SOCKET_PATH_MAX)
        self.folder = folder.absolute()
        self.settings = settings
        self.runtime = HaproxyRuntime(settings.stats_socket)
        self.config_path = self.folder / "haproxy.cfg"
        argv = [str(find_haproxy()), "-W", "-f", str(self.config_path)]
        log_path = self.folder / "haproxy.log"
        self.process = ManagedProcess(Command(name="haproxy", argv=argv, log_path=log_path, enter=machine.enter))

    async def start(self) -> None:
        """Write and check the configuration, start, wait until HAProxy answers on its socket. Raises ServerFailed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._write_state(NO_STATE)  # an old one would name replicas that may be gone
        await self._put_config(self.settings)
        self.process.start()
        await self.process.wait_ready(self._answers, READY_MAX_S)

    async def stop(self) -> None:
        """Close every connection and end."""
        await self.process.stop(STOP_GRACE_S)

    async def keep(self, say: Callable[[str, str], None]) -> None:
        """Restart it whenever it ends by itself, and report that, until cancelled."""
        while True:
            code = await self.process.wait()
            await self.process.kill()  # its remaining workers, which hold the port
            say("HAProxy", f"{how_it_ended(code)}; starts again")
            await self._start_again(say)

    async def _start_again(self, say: Callable[[str, str], None]) -> None:
        failures = 0
        while True:
            after = after_failure(failures, asyncio.get_running_loop().time(), RESTARTS)
            await asyncio.sleep(after.pause_s)
            try:
                return await self.start()
            except NotaryError as error:
                say("HAProxy", f"does not start: {error.detail}")
                failures = after.failures

    async def reload(self, settings: HaproxySettings) -> None:
        """Apply other settings. No connection is refused or cut, and the state of each replica is kept.

        Raises ServerFailed, and changes nothing, when HAProxy finds the new configuration invalid.
        """
        await self._put_config(settings)
        self.settings = settings
        self._write_state(await self.runtime.state())
        await self.take_over()

    async def take_over(self) -> None:
        """Start a new worker with the configuration and the state that are on disk, as a service's reload does."""
        before = await self._worker_pid()
        self.process.signal_leader(signal.SIGUSR2)

        async def taken_over() -> bool:
            return await self._answers() and await self._worker_pid() != before

        await self.process.wait_ready(taken_over, RELOAD_MAX_S)

    async def servers(self) -> dict[str, ServerState]:
        """How HAProxy sees each replica now. Raises OSError or TimeoutError when it does not answer."""
        return await self.runtime.servers()

    async def _put_config(self, settings: HaproxySettings) -> None:
        """Put the configuration in place once `haproxy -c` has accepted it."""
        candidate = self.config_path.with_suffix(".new")
        write(settings, candidate)
        await check_config(candidate, log_path=self.folder / "haproxy-check.log")
        candidate.replace(self.config_path)

    def _write_state(self, state: str) -> None:
        Path(self.settings.state_file).write_text(state)

    async def _answers(self) -> bool:
        try:
            await self._worker_pid()
        except (OSError, TimeoutError):
            return False
        return True

    async def _worker_pid(self) -> int:
        """Process id of the worker that answers now; during a reload nobody may answer for a moment."""
        for line in (await self.runtime.ask("show info")).splitlines():
            if line.startswith("Pid:"):
                return int(line.removeprefix("Pid:"))
        raise ServerFailed(f"haproxy gave no process id; the end of its log:\n{self.process.log_tail()}")


async def check_config(path: Path, log_path: Path) -> None:
    """Let HAProxy itself read a configuration file. Raises ServerFailed with its output."""
    argv = [str(find_haproxy()), "-c", "-f", str(path)]
    await run_to_end(Command(name="haproxy -c", argv=argv, log_path=log_path), CHECK_MAX_S)


async def check_keepalived_config(path: Path) -> None:
    """Let keepalived itself read a configuration file. Raises ServerFailed with its output.

    It prints nothing for a good file. Its exit code is meaningless: Debian 12's always ends by a signal of its own.
    The interface that the file names must exist on this machine.
    """
    program = find_keepalived()
    if program is None:
        raise SoftwareMissing("no keepalived; Debian's package is `keepalived`")
    process = await asyncio.create_subprocess_exec(
        *(str(program), "--config-test", "--use-file", str(path)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(CHECK_MAX_S):
            printed, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.communicate()
        raise ServerFailed(f"keepalived --config-test took longer than {CHECK_MAX_S:g} s") from None
    if complaints := printed.decode(errors="replace").strip():
        raise ServerFailed(f"keepalived does not accept {path.name}:\n{complaints}")


def find_haproxy() -> Path:
    """HAProxy's program. Raises SoftwareMissing."""
    found = _find("haproxy")
    if found is None:
        raise SoftwareMissing("no HAProxy; Debian's package is `haproxy`")
    return found


def find_keepalived() -> Path | None:
    """keepalived's program; None where it is not installed, because only HAProxy nodes need it."""
    return _find("keepalived")


def _find(name: str) -> Path | None:
    """A program that Debian keeps in a folder that is not on every path."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    return None if found is None else Path(found)
