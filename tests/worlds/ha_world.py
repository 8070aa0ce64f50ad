"""A world for the election on virtual time: a lock server, a network that misbehaves, replicas that die and restart."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from random import Random

from ha.election.driver import Election, Role, SwitchoverReport
from ha.election.states import Event, Readiness
from ha.ending import Ending
from ha.errors import ActivationFailed, HaError, TransitionFailed
from ha.lock.memory import ConnectionGone, MemoryLockServer, MemoryLockSession, Network
from ha.settings import ElectionSettings

NAMES = ("R1", "R2", "R3")


class LoopClock:
    """The running loop's virtual time as every clock of the machine; only the boot clock counts suspension."""

    suspended_s = 0.0

    def boottime_s(self) -> float:
        return asyncio.get_running_loop().time() + self.suspended_s

    def wall_us(self) -> int:
        return 1_700_000_000_000_000 + round(self.boottime_s() * 1e6)

    async def sleep_s(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)


@dataclass
class Faults:
    """How likely each misfortune is, per message or per decision. All zero: a quiet world."""

    lost: float = 0.0
    late: float = 0.0
    broken: float = 0.0
    stalled: float = 0.0
    activation_fails: float = 0.0
    step_down_breaks: float = 0.0
    close_unheard: float = 0.0
    cut_off: set[str] = field(default_factory=set)


class BadNetwork(Network):
    """Delays every message a little, some a lot, loses some, breaks the connection now and then."""

    def __init__(self, random: Random, faults: Faults) -> None:
        self._random = random
        self._faults = faults

    async def request(self, session: str, statement: str) -> None:
        await self._carry(session)

    async def answer(self, session: str, statement: str) -> None:
        await self._carry(session)

    def hears_close(self, session: str) -> bool:
        return session not in self._faults.cut_off and self._random.random() >= self._faults.close_unheard

    async def _carry(self, session: str) -> None:
        faults, chance = self._faults, self._random.random()
        if session in faults.cut_off or chance < faults.lost:
            await asyncio.Event().wait()
        if chance < faults.lost + faults.broken:
            raise ConnectionGone("broken by the network")
        late = chance < faults.lost + faults.broken + faults.late
        await asyncio.sleep(self._random.uniform(0.0, 3.0 if late else 0.005))


@dataclass
class Database:
    """What the lock protects: epochs, and writes that each say who wrote them under which epoch."""

    epochs: list[int] = field(default_factory=list)
    writes: list[tuple[int, str]] = field(default_factory=list)

    def raise_epoch(self) -> int:
        self.epochs.append(len(self.epochs) + 1)
        return self.epochs[-1]


class WritingService:
    """Activates by taking an epoch, writes while active, and notices when the election mistreats it."""

    def __init__(self, name: str, database: Database, server: MemoryLockServer, random: Random, faults: Faults) -> None:
        self.name = name
        self.roles: list[Role] = []
        self.session_problems: list[str | None] = []  # as they were reported, None when there was a session again
        self.activations = 0
        self.reaches_log = True
        self.fails = False
        self.lag_records = 0
        self._database = database
        self._server = server
        self._random = random
        self._faults = faults
        self._serving = False
        self._busy = False
        self._writer: asyncio.Task[None] | None = None

    async def activate(self, session: MemoryLockSession) -> None:
        assert not self._busy, "two transitions at a time"
        assert not self._serving, "activated twice without a step-down"
        self._busy = self._serving = True
        self.activations += 1
        try:
            async with session.statement("epoch") as connection:
                epoch = await connection.run(self._database.raise_epoch)
            await asyncio.sleep(self._random.uniform(0.0, 0.3))
            await session.confirm()
            if self.fails or self._random.random() < self._faults.activation_fails:
                raise ActivationFailed("by the dice")
            self._writer = asyncio.create_task(self._write(session, epoch))
        finally:
            self._busy = False

    async def step_down(self, ending: Ending) -> None:
        assert not self._busy, "two transitions at a time"
        self._serving = False
        if self._writer is not None:  # to cancel it inside a statement would close the session before its release
            await self._writer
            self._writer = None
        await asyncio.sleep(self._random.uniform(0.0, 0.2))
        if self._random.random() < self._faults.step_down_breaks:
            raise RuntimeError("by the dice")

    def readiness(self) -> Readiness:
        return Readiness(self.reaches_log, self.lag_records)

    def role_changed(self, role: Role, reason: str) -> None:
        self.roles.append(role)

    def session_changed(self, problem: str | None) -> None:
        self.session_problems.append(problem)

    async def _write(self, session: MemoryLockSession, epoch: int) -> None:
        with suppress(HaError):
            while self._serving:
                async with session.statement("write") as connection:
                    await connection.run(partial(self._one_write, connection.pid, epoch))
                await asyncio.sleep(self._random.uniform(0.02, 0.2))

    def _one_write(self, pid: int, epoch: int) -> None:
        """Runs at the server: a writer holds the lock at that instant, and no replica has a newer epoch."""
        owner = self._server.owner()
        assert owner is not None
        assert owner.pid == pid, "a write without the lock"
        assert epoch == self._database.epochs[-1], "a write under an old epoch"
        self._database.writes.append((epoch, self.name))


class StallingElection(Election[MemoryLockSession]):
    """An election whose loop is held up now and then: late ticks, late events."""

    stalls: Callable[[], float] = staticmethod(lambda: 0.0)
    frozen_until_s = 0.0

    async def _next_event(self) -> Event:
        event = await super()._next_event()
        await asyncio.sleep(max(self.stalls(), self.frozen_until_s - asyncio.get_running_loop().time()))
        return event


class Replica:
    """A process: runs an election, dies, is restarted by its supervisor."""

    def __init__(self, name: str, world: World) -> None:
        self.name = name
        self.failures = 0
        self._world = world
        self._task: asyncio.Task[None] | None = None
        self.start(after_failure=False)

    def start(self, *, after_failure: bool) -> None:
        world = self._world
        self.service = WritingService(self.name, world.database, world.server, world.random, world.faults)
        self.election = StallingElection(
            lambda: MemoryLockSession(world.server, name=self.name, settings=world.settings, clock=world.clock),
            clock=world.clock,
            settings=world.settings,
            random=Random(world.random.random()),
            after_failure=after_failure,
        )
        self.election.stalls = world.stall_s
        self._task = asyncio.create_task(self._run(self.election))

    async def _run(self, election: StallingElection) -> None:
        try:
            await election.run(self.service)
        except TransitionFailed as failure:
            if failure.__cause__ is not None and not isinstance(failure.__cause__, RuntimeError):
                raise  # an assertion of ours, or a bug of theirs
            self.failures += 1
            await self._end_writer()
            await asyncio.sleep(0.1)
            self.start(after_failure=True)

    async def _end_writer(self) -> None:
        writer = self.service._writer
        if writer is not None:
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    async def die(self) -> None:
        """SIGKILL: no replica is notified; the kernel closes the sockets."""
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._end_writer()

    async def finish(self) -> None:
        """Ask to stop, wait, and re-raise what went wrong."""
        self.election.stop()
        assert self._task is not None
        async with asyncio.timeout(30):
            await self._task

    @property
    def broken(self) -> BaseException | None:
        """The message of an assertion inside the replica."""
        if self._task is None or not self._task.done() or self._task.cancelled():
            return None
        return self._task.exception()


class World:
    """Server, network, replicas, and an observer who sees all health answers at one time."""

    def __init__(self, random: Random, settings: ElectionSettings, names: tuple[str, ...] = NAMES) -> None:
        self.random = random
        self.settings = settings
        self.clock = LoopClock()
        self.faults = Faults()
        self.database = Database()
        self.server = MemoryLockServer(self.clock, lease_s=settings.lease_s)
        self.server.network = BadNetwork(random, self.faults)
        self.killed_at_s = float("-inf")
        self.replicas = [Replica(name, self) for name in names]
        self.switchovers: list[asyncio.Task[SwitchoverReport]] = []
        self._observer = asyncio.create_task(self._observe())

    def stall_s(self) -> float:
        return self.random.uniform(0.0, 4.0) if self.random.random() < self.faults.stalled else 0.0

    def leaders(self) -> list[str]:
        return [replica.name for replica in self.replicas if replica.election.is_leading()]

    def kill_holder(self) -> None:
        """The server ends the session that holds the lock; its holder is not notified."""
        owner = self.server.owner()
        if owner is not None:
            self.server.end(owner.pid)
            self.killed_at_s = self.clock.boottime_s()

    def freeze_leader(self, duration_s: float) -> None:
        """SIGSTOP: its loop does not run and it is silent; what others see of it is what it claimed last."""
        for replica in self.replicas:
            if replica.election.is_leading():
                replica.election.frozen_until_s = self.clock.boottime_s() + duration_s
                self.faults.cut_off.add(replica.name)
                self.heal_later(replica.name, duration_s)

    def heal_later(self, name: str, delay_s: float) -> None:
        asyncio.get_running_loop().call_later(delay_s, self.faults.cut_off.discard, name)

    def restart_server(self) -> None:
        self.server.end_all()
        self.killed_at_s = self.clock.boottime_s()

    async def _observe(self) -> None:
        """Two may claim to lead only while the elder has not asked since the server killed its session."""
        while True:
            leaders = self.leaders()
            if len(leaders) > 1:
                since_kill_s = self.clock.boottime_s() - self.killed_at_s
                assert since_kill_s <= self.settings.confirmed_age_max_s, (
                    f"{leaders} lead, {since_kill_s} s after a kill"
                )
            await asyncio.sleep(0.01)

    async def until(self, holds: Callable[[], bool], timeout_s: float = 30.0) -> float:
        """Wait until it holds; returns how long it took."""
        started_s = self.clock.boottime_s()
        async with asyncio.timeout(timeout_s):
            while not holds():
                self.check()
                await asyncio.sleep(0.01)
        return self.clock.boottime_s() - started_s

    def check(self) -> None:
        """Raise what the observer or a replica found wrong."""
        if self._observer.done():
            self._observer.result()
        for replica in self.replicas:
            if replica.broken is not None:
                raise replica.broken

    async def end(self) -> None:
        for replica in self.replicas:
            await replica.finish()
        self.check()
        self._observer.cancel()
