"""Carries out what core.py decides: looks at replicas, runs them as children or by the operator's commands."""

from __future__ import annotations

import asyncio
import shlex
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import aiohttp

from haproxy.render import ReplicaAddress
from replica.local.process import Command, ManagedProcess, ServerFailed, run_to_end
from replica.notary.errors import NotaryError
from replica.watch.core import Act, Decision, Seen, Starting, State, Stopping, begin, step
from replica.watch.settings import WatchSettings

Say = Callable[[str, str], None]


class WatchedReplica:
    """One replica of this machine: how to look at it, and how to start, stop and kill it."""

    def __init__(self, address: ReplicaAddress, argv: Sequence[str], log_path: Path, settings: WatchSettings) -> None:
        """`argv` runs it in the foreground; used unless commands start and stop it."""
        self.address = address
        self._settings = settings
        self._log_path = log_path
        # it steps down in order when the watch itself is gone, so nothing runs that nobody looks after
        command = Command(name=address.name, argv=argv, log_path=log_path, death_signal=signal.SIGTERM)
        self._child = ManagedProcess(command)
        self._was_started = False

    async def look(self, session: aiohttp.ClientSession) -> Seen:
        """Ask it whether it is live; takes check_timeout_s at most."""
        url = f"http://{self.address.host}:{self.address.health_port}/health/live"
        timeout = aiohttp.ClientTimeout(total=self._settings.check_timeout_s)
        try:
            async with session.get(url, timeout=timeout) as answer:
                live, answers = answer.status == 200, True
        except TimeoutError:  # it accepts and says nothing: frozen, not gone
            live, answers = False, True
        except (aiohttp.ClientError, OSError):
            live, answers = False, False
        ended = self._was_started and not self._child.running
        return Seen(live, answers or self._child.running, ended, self._child.returncode if ended else None)

    async def carry_out(self, act: Act) -> None:
        """Start, stop, restart or kill it. Raises NotaryError when a command fails; the next look shows what is so."""
        settings = self._settings
        by_command = {
            Act.START: settings.start_command,
            Act.STOP: settings.stop_command,
            Act.RESTART: settings.restart_command,
            Act.KILL: settings.stop_command,
        }[act]
        if by_command is not None:
            await self._run(by_command)
        elif act is Act.START:
            await self._child.kill()  # what is left of its group
            self._child.start()
            self._was_started = True
        elif self._child.running:
            if act is Act.KILL:
                await self._child.kill()
            else:
                self._child.signal_leader(signal.SIGTERM)

    async def end(self) -> None:
        """Stop it in order, if it is our child; what commands started goes on."""
        if self._was_started:
            await self._child.stop(self._settings.stop_max_s)

    async def _run(self, text: str) -> None:
        argv = shlex.split(text.replace("{name}", shlex.quote(self.address.name)))
        command = Command(name=argv[0], argv=argv, log_path=self._log_path)
        await run_to_end(command, self._settings.command_max_s)


class Watch:
    """Looks after several replicas until `run` is cancelled."""

    def __init__(self, replicas: Sequence[WatchedReplica], settings: WatchSettings, say: Say) -> None:
        self._replicas = {replica.address.name: replica for replica in replicas}
        self._settings = settings
        self._say = say
        self.states: dict[str, State] = {}

    async def run(self) -> None:
        """Look, decide, act, again and again; on the way out every child is stopped in order."""
        loop = asyncio.get_running_loop()
        self.states = {name: begin(loop.time()) for name in self._replicas}
        try:
            async with aiohttp.ClientSession() as session:
                while True:
                    seen = await self._look(session)
                    for name, replica in self._replicas.items():
                        await self._apply(name, replica, self._decide(name, seen[name], loop.time()))
                    await asyncio.sleep(self._settings.check_interval_s)
        finally:
            await asyncio.gather(*(replica.end() for replica in self._replicas.values()), return_exceptions=True)

    async def _look(self, session: aiohttp.ClientSession) -> Mapping[str, Seen]:
        found = await asyncio.gather(*(replica.look(session) for replica in self._replicas.values()))
        return dict(zip(self._replicas, found, strict=True))

    def _decide(self, name: str, seen: Seen, now_s: float) -> Decision:
        others = [state for other, state in self.states.items() if other != name]
        may_take_down = not any(isinstance(state, Starting | Stopping) for state in others)
        return step(self.states[name], seen, now_s, self._settings, may_take_down=may_take_down)

    async def _apply(self, name: str, replica: WatchedReplica, decision: Decision) -> None:
        self.states[name] = decision.state
        if decision.told is not None:
            self._say(name, decision.told)
        if decision.act is not None:
            try:
                await replica.carry_out(decision.act)
            except (NotaryError, ServerFailed) as error:
                self._say(name, f"{decision.act.value} failed: {error.detail}")
