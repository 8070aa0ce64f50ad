"""The lock session's contract as random calls: the double and another kind are asked the same.

Of owners the names are compared: each server numbers its sessions. Silence is `LockContract`'s subject: no lease ends
here. Named differences of a lease over a log: whoever opens later reads the last note as well; and a claim out of turn
is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from ha.clock import SystemClock
from ha.errors import LockLost
from ha.invariant import InvariantBroken
from ha.lock.interface import LockAnswer, LockView
from ha.lock.memory import MemoryConnection, MemoryLockServer, MemoryLockSession
from tests.contracts.lock_contract import World
from tests.contracts.side_by_side import Make, SideBySide
from tests.contracts.store_machine import PATIENT

LOST = LockLost, LockLost.code
AGAIN = InvariantBroken, InvariantBroken.code
ENDED_MAX_S = 30.0  # until a server knows of a session that was closed


@dataclass
class LockWorld:
    """One lock and its sessions; the first one only looks."""

    world: World
    tells_notes: bool
    sessions: list[Any] = field(default_factory=list)

    async def open(self) -> None:
        session = self.world.session(f"R{len(self.sessions)}")
        await session.open()
        self.sessions.append(session)

    async def try_lock(self, session: int) -> tuple[bool, str | None, object]:
        answer: LockAnswer = await self.sessions[session].try_lock()
        return answer.granted, answer.owner and answer.owner.name, self.tells_notes and answer.released

    async def look(self, session: int) -> tuple[str | None, object]:
        view: LockView = await self.sessions[session].look()
        return view.owner and view.owner.name, self.tells_notes and view.released

    async def confirm(self, session: int) -> None:
        await self.sessions[session].confirm()

    async def use(self, session: int) -> None:
        async with self.sessions[session].statement("test") as connection:
            await self.world.nothing(connection)

    async def release(self, session: int, to: str | None) -> None:
        await self.sessions[session].release(to)
        await self.close(session)

    async def close(self, session: int) -> None:
        """Returns once the server knows."""
        await self.sessions[session].close()
        async with asyncio.timeout(ENDED_MAX_S):
            while (await self.look(0))[0] == self.sessions[session].name:
                await asyncio.sleep(0.002)

    async def kill(self, session: int) -> None:
        await self.world.kill(self.sessions[session])


class LockMachine(SideBySide[LockWorld]):
    """One holder, whom everybody sees; a session that is lost stays lost."""

    replicas = st.integers(0, 2)  # each goes on with a new session once it saw that it lost one
    tos = st.none() | st.sampled_from(["R1", "R2"])

    def __init__(self, double: Make[LockWorld], other: Make[LockWorld]) -> None:
        super().__init__(double, other)
        self.opened = 0
        self.holder: int | None = None
        self.granted: set[int] = set()
        self.lost: set[int] = set()
        self.of = [self._open() for _ in range(4)][1:]  # sessions, by replica

    @rule(replica=replicas)
    def try_lock(self, replica: int) -> None:
        session = self.of[replica]
        if session in self.granted:
            self.same(lambda world: world.try_lock(session), AGAIN)
        elif (answer := self._asked(replica, LockWorld.try_lock)) is not None:
            assert answer[:2] == (self.holder is None, self._name_of_holder())
            if answer[0]:
                self.holder = session
                self.granted.add(session)

    @rule(replica=replicas)
    def look(self, replica: int) -> None:
        if (answer := self._asked(replica, LockWorld.look)) is not None:
            assert answer[0] == self._name_of_holder()

    @rule(replica=replicas)
    def use(self, replica: int) -> None:
        self._asked(replica, LockWorld.use)

    @rule(replica=replicas)
    def confirm(self, replica: int) -> None:
        session = self.of[replica]
        self.same(lambda world: world.confirm(session), None if session == self.holder else LOST)
        if session != self.holder:
            self.lost.add(session)

    @precondition(lambda self: self.holder is not None)
    @rule(to=tos)
    def release(self, to: str | None) -> None:
        holder = self._end(self.holder)
        self.same(lambda world: world.release(holder, to), None)

    @precondition(lambda self: self.holder is not None)
    @rule()
    def kill(self) -> None:
        holder = self._end(self.holder)
        self.same(lambda world: world.kill(holder), None)

    @rule(replica=replicas)
    def close(self, replica: int) -> None:
        """Again, too."""
        session = self._end(self.of[replica])
        self.same(lambda world: world.close(session), None)

    def _open(self) -> int:
        self.same(lambda world: world.open(), None)
        self.opened += 1
        return self.opened - 1

    def _asked(self, replica: int, ask: Callable[[LockWorld, int], Awaitable[Any]]) -> Any:
        """The answer; None of a session that is lost, which has none."""
        session = self.of[replica]
        if session not in self.lost:
            return self.same(lambda world: ask(world, session))
        self.same(lambda world: ask(world, session), LOST)
        self.of[replica] = self._open()
        return None

    def _end(self, session: int | None) -> int:
        assert session is not None
        self.lost.add(session)
        self.holder = None if session == self.holder else self.holder
        return session

    def _name_of_holder(self) -> str | None:
        return None if self.holder is None else f"R{self.holder}"


class LeaseMachine(LockMachine):
    """Of a lease over a log."""

    tos = st.none()


@asynccontextmanager
async def lock_world(world: World, *, tells_notes: bool = True) -> AsyncIterator[LockWorld]:
    """On a lock that nobody holds."""
    made = LockWorld(world, tells_notes)
    yield made
    for session in made.sessions:
        await session.close()


def memory_world(*, tells_notes: bool = True) -> AbstractAsyncContextManager[LockWorld]:
    """The double's."""
    clock = SystemClock()
    server = MemoryLockServer(clock, lease_s=PATIENT.lease_s)

    def session(name: str) -> MemoryLockSession:
        return MemoryLockSession(server, name=name, settings=PATIENT, clock=clock)

    async def kill(session: Any) -> None:
        server.end(session._connection.pid)

    async def nothing(connection: MemoryConnection) -> None:
        await connection.run(lambda: None)

    return lock_world(World(session, kill, nothing, nothing), tells_notes=tells_notes)
