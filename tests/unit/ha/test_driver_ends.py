"""What ends the process of a replica, and with which error."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from ha.election.driver import Election
from ha.ending import Ending
from ha.errors import ScopeMismatch, TransitionFailed
from ha.lock.memory import MemoryLockServer, MemoryLockSession
from tests.unit.ha.electing import SETTINGS, leader_of, play
from tests.virtual_time import on_virtual_time
from tests.worlds.ha_world import LoopClock, World, WritingService


def test_a_step_down_that_fails_ends_the_process() -> None:
    """Goal: nobody goes on beside a service that may still serve. Method: the step-down raises."""

    async def story(world: World) -> None:
        await world.until(lambda: bool(world.leaders()))
        old = leader_of(world)
        world.faults.step_down_breaks = 1.0
        world.kill_holder()
        await world.until(lambda: old.failures == 1)
        world.faults.step_down_breaks = 0.0
        await world.until(lambda: bool(world.leaders()))

    play(story)


class SlowToStop(WritingService):
    """Its step-down never ends."""

    async def step_down(self, ending: Ending) -> None:
        await asyncio.Event().wait()


@on_virtual_time
async def test_a_step_down_that_takes_too_long_ends_the_process() -> None:
    """Goal: drain_max_s is a bound. Method: a step-down that hangs; run() raises soon after."""
    world = World(Random(1), SETTINGS, ())
    service = SlowToStop("R1", world.database, world.server, world.random, world.faults)
    election = Election(
        lambda: MemoryLockSession(world.server, name="R1", settings=SETTINGS, clock=world.clock),
        clock=world.clock,
        settings=SETTINGS,
        random=Random(1),
    )
    task = asyncio.create_task(election.run(service))
    await world.until(election.is_leading)
    stopped_s = world.clock.boottime_s()
    election.stop()
    with pytest.raises(TransitionFailed, match="step-down took more"):
        await task
    assert world.clock.boottime_s() - stopped_s < SETTINGS.drain_max_s + 0.2
    assert world.server.owner() is None
    await world.end()


@on_virtual_time
async def test_a_configuration_error_ends_the_process_with_itself() -> None:
    """Goal: what no retry can mend is not retried. Method: a wrong scope."""
    clock = LoopClock()
    server = MemoryLockServer(clock, lease_s=3.0)
    world = World(Random(1), SETTINGS, ())
    election = Election(
        lambda: MemoryLockSession(server, name="R1", settings=SETTINGS, clock=clock, scope="elsewhere"),
        clock=clock,
        settings=SETTINGS,
        random=Random(1),
    )
    with pytest.raises(ScopeMismatch):
        await election.run(WritingService("R1", world.database, server, world.random, world.faults))
    await world.end()


@on_virtual_time
async def test_a_bug_in_a_service_ends_the_process() -> None:
    """Goal: an unexpected exception is not taken for a failed activation. Method: an activation with a bug."""

    class Buggy(WritingService):
        async def activate(self, session: MemoryLockSession) -> None:
            raise ZeroDivisionError

    world = World(Random(1), SETTINGS, ())
    election = Election(
        lambda: MemoryLockSession(world.server, name="R1", settings=SETTINGS, clock=world.clock),
        clock=world.clock,
        settings=SETTINGS,
        random=Random(1),
    )
    with pytest.raises(TransitionFailed, match="ZeroDivisionError") as failure:
        await election.run(Buggy("R1", world.database, world.server, world.random, world.faults))
    assert isinstance(failure.value.__cause__, ZeroDivisionError)
    await world.end()
