"""Switchover: who is asked for leads, or the one that led does again."""

from __future__ import annotations

import asyncio

import pytest

from ha.election.states import Handover
from tests.unit.ha.electing import SETTINGS, leader_of, play
from tests.worlds.ha_world import World


def test_switchover_reports_who_took_over() -> None:
    """Goal: a hand-over in well under a second that names the new active. Method: switch over twice in one call."""

    async def story(world: World) -> None:
        await world.until(lambda: bool(world.leaders()))
        old = leader_of(world)
        first, second = await asyncio.gather(old.election.switchover(), old.election.switchover())
        assert first.outcome is second.outcome is Handover.TAKEN_OVER
        assert first.took_s < 0.7
        await world.until(lambda: bool(world.leaders()))
        assert world.leaders() == [first.took_over_by]
        assert (await old.election.switchover()).outcome is Handover.NOT_ACTIVE

    play(story)


@pytest.mark.parametrize("seed", range(5))
def test_a_switchover_to_a_replica_goes_to_that_one_at_once(seed: int) -> None:
    """Goal: `--to` is obeyed although others poll, and no poll is waited for. Method: each other replica in turn."""

    async def story(world: World) -> None:
        await world.until(lambda: bool(world.leaders()))
        await asyncio.sleep(world.random.uniform(0.5, 1.0))
        for target in ("R2", "R3", "R1"):
            old = leader_of(world)
            if old.name == target:
                continue
            report = await old.election.switchover(target)
            assert (report.outcome, report.took_over_by) == (Handover.TAKEN_OVER, target)
            await world.until(lambda: bool(world.leaders()))
            assert old.election.status()["lock_owner"] == target
            assert leader_of(world).election.status()["lock_owner"] == target

    play(story, seed=seed)


@pytest.mark.parametrize("seed", range(20))
def test_a_switchover_to_a_replica_that_cannot_activate_comes_back(seed: int) -> None:
    """Goal: an unfit target costs a moment. Method: its activations fail; the old active must lead again, not R3."""

    async def story(world: World) -> None:
        await world.until(lambda: bool(world.leaders()))
        old, *others = sorted(world.replicas, key=lambda replica: replica.name not in world.leaders())
        target = others[0]
        target.service.fails = True
        assert (await old.election.switchover(target.name)).took_over_by == target.name
        assert await world.until(lambda: bool(world.leaders())) < SETTINGS.switchover_wait_s
        assert leader_of(world) is old

    play(story, seed=seed)


@pytest.mark.parametrize("seed", range(20))
def test_a_third_replica_leads_when_target_and_old_active_fail(seed: int) -> None:
    """Goal: the preference ends. Method: neither of the two can activate; R3 leads within twice the wait and a poll."""

    async def story(world: World) -> None:
        await world.until(lambda: bool(world.leaders()))
        old, target, third = sorted(world.replicas, key=lambda replica: replica.name not in world.leaders())
        old.service.fails = target.service.fails = True
        await old.election.switchover(target.name)
        assert await world.until(lambda: bool(world.leaders())) < 2 * SETTINGS.switchover_wait_s + 1.0
        assert leader_of(world) is third

    play(story, seed=seed)


def test_a_switchover_that_nobody_accepts_is_undone() -> None:
    """Goal: a lone replica does not switch itself off. Method: switch over without a peer."""

    async def story(world: World) -> None:
        await world.until(lambda: bool(world.leaders()))
        report = await world.replicas[0].election.switchover()
        assert report.outcome is Handover.UNDONE
        assert report.took_over_by is None
        assert world.leaders() == ["R1"]
        assert report.took_s < SETTINGS.switchover_wait_s + 1.5

    play(story, names=("R1",))
