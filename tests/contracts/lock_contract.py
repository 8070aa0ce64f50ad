"""The contract of a lock session. A class that inherits it provides the fixture `world`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from ha.clock import SystemClock
from ha.errors import LockLost, ScopeMismatch
from ha.lock.interface import NEVER_S, ReleaseNote
from ha.settings import ElectionSettings
from tests.waiting import eventually

SETTINGS = ElectionSettings(
    lease_s=1.0, heartbeat_s=0.2, margin_s=0.2, answer_max_s=0.6, statement_max_s=0.4, drain_max_s=0.6
)
CLOCK = SystemClock()
LATE_MAX_S = 8.0  # a machine that others use too
PATIENCE_S = 5.0  # a lease longer than this is not waited for


@dataclass
class World:
    """One database with one lock: how to open sessions on it, and how to do things to them."""

    session: Callable[..., Any]  # (name, scope=None) -> a session, not open
    kill: Callable[[Any], Awaitable[None]]  # the server ends the session of its holder
    stall: Callable[[Any], Awaitable[None]]  # runs a statement that is not answered in time
    nothing: Callable[[Any], Awaitable[None]]  # runs a trivial statement on what `statement` yields
    lease_s: float = SETTINGS.lease_s  # silence that the server tolerates
    same_clock: bool = True  # server and client run on one machine
    made: list[Any] = field(default_factory=list)

    @contextmanager
    def watched(self) -> Iterator[World]:
        """Every session that a test makes is closed at its end, or the test has left it open."""
        make = self.session

        def keep(*args: Any, **kwargs: Any) -> Any:
            self.made.append(make(*args, **kwargs))
            return self.made[-1]

        self.session = keep
        yield self
        for session in self.made:
            assert session.closed, f"the test left {session.name} open"


async def opened(world: World, name: str) -> Any:
    session = world.session(name)
    await session.open()
    return session


async def grants(session: Any) -> bool:
    return bool((await session.try_lock()).granted)


class LockContract:
    """Every test gets a lock that nobody holds."""

    async def test_one_holder_at_a_time_and_the_others_see_who(self, world: World) -> None:
        """Goal: the lock is exclusive, and its owner is named. Method: two sessions ask, look and confirm."""
        first, second = await opened(world, "R1"), await opened(world, "R2")
        assert (await second.look()).free
        before_s = CLOCK.boottime_s()
        granted = await first.try_lock()
        assert granted.granted
        assert before_s <= granted.asked_at_s <= CLOCK.boottime_s()
        refused = await second.try_lock()
        assert not refused.granted
        assert refused.owner is not None
        assert refused.owner.name == "R1"
        assert (await second.look()).owner == refused.owner
        assert await first.confirm() >= granted.asked_at_s
        with pytest.raises(LockLost):
            await second.confirm()
        assert second.closed
        await first.close()

    async def test_closing_frees_the_lock_and_may_be_repeated(self, world: World) -> None:
        """Goal: the lock dies with its session. Method: close twice, ask from another."""
        first, second = await opened(world, "R1"), await opened(world, "R2")
        await first.try_lock()
        await first.close()
        await first.close()
        await asyncio.wait_for(first.wait_closed(), 1)
        await eventually(lambda: grants(second))
        with pytest.raises(LockLost):
            await first.confirm()
        await second.close()

    async def test_a_release_on_purpose_is_told_to_the_others_and_a_loss_is_not(self, world: World) -> None:
        """Goal: peers can distinguish a release from an interruption. Method: release; take it; kill the holder;
        look."""
        first, second, third = [await opened(world, name) for name in ("R1", "R2", "R3")]
        await first.try_lock()
        assert not (await second.look()).free
        await first.release()
        view = await second.look()
        assert view.free
        assert view.released
        assert (await third.try_lock()).granted
        assert not (await second.look()).released
        await world.kill(third)
        view = await second.look()
        assert view.free
        assert not view.released
        with pytest.raises(LockLost):
            await third.confirm()
        for session in (first, second):
            await session.close()

    async def test_who_is_granted_the_lock_learns_for_whom_it_was_released(self, world: World) -> None:
        """Goal: a grant out of turn is known for one. Method: release for R2, ask as R3; kill it, ask as R2."""
        first, second, third = [await opened(world, name) for name in ("R1", "R2", "R3")]
        assert (await first.try_lock()).released is None
        assert not (await second.try_lock()).granted
        await first.release("R2")
        granted = await third.try_lock()
        assert (granted.granted, granted.released) == (True, ReleaseNote("R1", "R2"))
        assert not (await second.try_lock()).granted
        await world.kill(third)
        granted = await second.try_lock()
        assert (granted.granted, granted.released) == (True, None)
        for session in (first, second, third):
            await session.close()

    async def test_a_killed_session_learns_it_with_its_next_statement(self, world: World) -> None:
        """Goal: a lost lock is LockLost, and no write is applied silently. Method: kill, then write."""
        session = await opened(world, "R1")
        await session.try_lock()
        await world.kill(session)
        with pytest.raises(LockLost):
            async with session.statement("test.write") as connection:
                await world.nothing(connection)
        assert session.closed

    async def test_a_silent_session_loses_the_lock_after_the_lease(self, world: World) -> None:
        """Goal: the server frees the lock of a silent holder. Method: say nothing; a peer asks."""
        if world.lease_s > PATIENCE_S:
            pytest.skip(f"the server bears {world.lease_s:g} s of silence: too long to wait for")
        holder, peer = await opened(world, "R1"), await opened(world, "R2")
        granted = await holder.try_lock()
        async with asyncio.timeout(world.lease_s + 4):
            while not (await peer.try_lock()).granted:
                await asyncio.sleep(0.02)
        waited_s = CLOCK.boottime_s() - granted.asked_at_s
        assert world.lease_s <= waited_s < world.lease_s + 1.0
        with pytest.raises(LockLost):
            await holder.confirm()
        await peer.close()

    async def test_answered_statements_count_from_their_sending(self, world: World) -> None:
        """Goal: an answered statement is a heartbeat, dated when sent; an idle block is not. Method: both."""
        session = world.session("R1")
        assert session.answered_at_s == NEVER_S
        await session.open()
        before_s = CLOCK.boottime_s()
        async with session.statement("test.slow") as connection:
            sent_s = CLOCK.boottime_s()
            await world.nothing(connection)
            await asyncio.sleep(0.05)
        assert before_s <= session.answered_at_s <= sent_s
        answered_at_s = session.answered_at_s
        async with session.statement("test.idle"):
            pass
        assert session.answered_at_s == answered_at_s
        await session.close()

    async def test_no_answer_in_time_closes_the_session(self, world: World) -> None:
        """Goal: an unknown outcome is LockLost after answer_max_s; the lock goes. Method: a statement that stalls."""
        session, peer = await opened(world, "R1"), await opened(world, "R2")
        await session.try_lock()
        answered_s = session.answered_at_s
        with pytest.raises(LockLost):
            async with session.statement("test.stall") as connection:
                await world.stall(connection)
        silent_s = CLOCK.boottime_s() - answered_s
        assert SETTINGS.answer_max_s <= silent_s < SETTINGS.answer_max_s + LATE_MAX_S
        assert session.closed
        await eventually(lambda: grants(peer))
        await peer.close()

    async def test_close_wakes_who_waits_for_an_answer(self, world: World) -> None:
        """Goal: nobody waits on a closed session. Method: close while one statement stalls and one waits its turn."""
        session = await opened(world, "R1")

        async def stalls() -> None:
            async with session.statement("test.stall") as connection:
                await world.stall(connection)

        waiting = [asyncio.create_task(stalls()), asyncio.create_task(session.confirm())]
        await asyncio.sleep(0.1)
        started_s = CLOCK.boottime_s()
        await session.close()
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [LockLost, LockLost]
        assert CLOCK.boottime_s() - started_s < 0.3

    async def test_a_cancelled_user_closes_the_session(self, world: World) -> None:
        """Goal: a task cancelled in mid-statement leaves no half-known session. Method: cancel one that stalls."""
        session = await opened(world, "R1")

        async def stalls() -> None:
            async with session.statement("test.stall") as connection:
                await world.stall(connection)

        task = asyncio.create_task(stalls())
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert session.closed

    async def test_statements_take_turns(self, world: World) -> None:
        """Goal: one user of the connection at a time, first come first served. Method: three overlapping users."""
        session = await opened(world, "R1")
        order: list[str] = []

        async def use(name: str) -> None:
            async with session.statement(name) as connection:
                order.append(f"{name} in")
                await world.nothing(connection)
                await asyncio.sleep(0.01)
                order.append(f"{name} out")

        await asyncio.gather(use("a"), use("b"), use("c"))
        assert order == ["a in", "a out", "b in", "b out", "c in", "c out"]
        await session.close()

    async def test_an_error_of_the_user_leaves_the_session_alive(self, world: World) -> None:
        """Goal: only unknown outcomes cost the lock. Method: a user raises between statements."""
        session = await opened(world, "R1")
        await session.try_lock()
        with pytest.raises(KeyError):
            async with session.statement("test.error") as connection:
                await world.nothing(connection)
                raise KeyError("mine")
        await session.confirm()
        await session.close()

    async def test_another_scope_is_refused(self, world: World) -> None:
        """Goal: a replica with another name for the database does not start. Method: open under a wrong scope."""
        session = world.session("R1", scope="elsewhere")
        with pytest.raises(ScopeMismatch) as refusal:
            await session.open()
        assert not refusal.value.retry
        assert session.closed

    async def test_the_same_clock_shows_no_skew_and_the_identity_is_known(self, world: World) -> None:
        """Goal: clock and cluster are known once open. Method: one machine, so one clock."""
        session = await opened(world, "R1")
        if world.same_clock:
            assert abs(session.clock_skew_s) < 0.01
        identity = await session.database_identity()
        assert identity.system_identifier
        assert identity.timeline >= 1
        await session.close()
