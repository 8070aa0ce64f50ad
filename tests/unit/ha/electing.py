"""What tests of the election play: replicas in one world, for a time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random

from ha.settings import ElectionSettings
from tests.simulation.virtual import run_virtually
from tests.worlds.ha_world import Replica, World

SETTINGS = ElectionSettings()
Story = Callable[[World], Awaitable[None]]


def play(
    story: Story, settings: ElectionSettings = SETTINGS, names: tuple[str, ...] = ("R1", "R2", "R3"), seed: int = 1
) -> None:
    """Run a story to its end; every assertion of the world counts."""

    async def run() -> None:
        world = World(Random(seed), settings, names)
        await story(world)
        await world.end()

    run_virtually(run())


def leader_of(world: World) -> Replica:
    (name,) = world.leaders()
    return next(replica for replica in world.replicas if replica.name == name)
