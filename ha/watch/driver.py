"""Carries out what core.py decides: looks at replicas, runs them as children or by the operator's commands."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import aiohttp

from ha.watch.core import Act, Decision, Seen, Starting, State, Stopping, begin, step
from ha.watch.settings import WatchSettings

Say = Callable[[str, str], None]


class ActFailed(Exception):
    """A replica could not be started, stopped or killed; the text says why. The next look shows its actual state."""


class Hands(Protocol):
    """What the watch does with one replica of this machine. Each method raises ActFailed when it cannot."""

    @property
    def running(self) -> bool:
        """Whether our child has not ended; a frozen one counts as running."""

    @property
    def returncode(self) -> int | None:
        """Exit code of our child, negative for a signal; None while it runs or before it was started."""

    def start(self) -> None:
        """Start it as our child."""

    def terminate(self) -> None:
        """Ask our child to end; returns at once."""

    async def kill(self) -> None:
        """Kill our child and what is left of its process group."""

    async def stop(self, stop_max_s: float) -> None:
        """Ask our child to end, and kill it after `stop_max_s`."""

    async def run(self, argv: Sequence[str], run_max_s: float) -> None:
        """Run a command of the operator's to its end, `run_max_s` at most."""


class WatchedReplica:
    """One replica of this machine: how to look at it, and how to start, stop and kill it."""

    def __init__(self, name: str, live_url: str, hands: Hands, settings: WatchSettings) -> None:
        """`live_url` answers 200 while the replica is live. `hands` run it, unless commands start and stop it."""
        self.name = name
        self._live_url = live_url
        self._hands = hands
        self._settings = settings
        self._was_started = False

    async def look(self, session: aiohttp.ClientSession) -> Seen:
        """Ask it whether it is live; takes check_timeout_s at most."""
        timeout = aiohttp.ClientTimeout(total=self._settings.check_timeout_s)
        try:
            async with session.get(self._live_url, timeout=timeout) as answer:
                live, answers = answer.status == 200, True
        except TimeoutError:  # it accepts and says nothing: frozen, not gone
            live, answers = False, True
        except (aiohttp.ClientError, OSError):
            live, answers = False, False
        ended = self._was_started and not self._hands.running
        return Seen(live, answers or self._hands.running, ended, self._hands.returncode if ended else None)

    async def carry_out(self, act: Act) -> None:
        """Start, stop, restart or kill it. Raises ActFailed; the next look shows its actual state."""
        settings = self._settings
        by_command = {
            Act.START: settings.start_command,
            Act.STOP: settings.stop_command,
            Act.RESTART: settings.restart_command,
            Act.KILL: settings.stop_command,
        }[act]
        if by_command is not None:
            argv = shlex.split(by_command.replace("{name}", shlex.quote(self.name)))
            await self._hands.run(argv, settings.command_max_s)
        elif act is Act.START:
            await self._hands.kill()  # what is left of its group
            self._hands.start()
            self._was_started = True
        elif self._hands.running:
            if act is Act.KILL:
                await self._hands.kill()
            else:
                self._hands.terminate()

    async def end(self) -> None:
        """Stop it in order, if it is our child. A replica that commands started keeps running."""
        if self._was_started:
            await self._hands.stop(self._settings.stop_max_s)


class Watch:
    """Looks after several replicas until `run` is cancelled."""

    def __init__(
        self, replicas: Sequence[WatchedReplica], settings: WatchSettings, say: Say, *, person_code: int
    ) -> None:
        """`person_code`: the exit code of a replica that must not be started again before a person has acted."""
        self._replicas = {replica.name: replica for replica in replicas}
        self._settings = settings
        self._restarts = settings.restarts(person_code)
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
        return step(self.states[name], seen, now_s, self._settings, self._restarts, may_take_down=may_take_down)

    async def _apply(self, name: str, replica: WatchedReplica, decision: Decision) -> None:
        self.states[name] = decision.state
        if decision.message is not None:
            self._say(name, decision.message)
        if decision.act is not None:
            try:
                await replica.carry_out(decision.act)
            except ActFailed as error:
                self._say(name, f"{decision.act.value} failed: {error}")
