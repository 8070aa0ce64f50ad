"""The driver on virtual time, with the in-memory lock: one fault at a time, then all of them by seed."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from ha.election.driver import Role
from ha.election.states import Handover
from ha.ending import Cause, Ending
from ha.errors import LockLost
from ha.lock.memory import MemoryLockSession
from ha.settings import ElectionSettings
from tests.few import few_quick
from tests.simulation.virtual import run_virtually
from tests.unit.ha.electing import SETTINGS, leader_of, play
from tests.worlds.ha_world import World


def test_one_of_three_becomes_active_and_stays_so() -> None:
    """Goal: a quiet cluster elects once. Method: a minute of virtual time."""

    async def story(world: World) -> None:
        assert await world.until(lambda: len(world.leaders()) == 1) < 1.0
        await asyncio.sleep(60)
        assert len(world.leaders()) == 1
        assert len(world.database.epochs) == 1
        assert [r.role for r in (replica.election for replica in world.replicas)].count(Role.PASSIVE) == 2

    play(story)


def test_a_dead_active_is_followed_within_a_poll() -> None:
    """Goal: a killed process costs one poll and one activation. Method: kill the active."""

    async def story(world: World) -> None:
        await world.until(lambda: len(world.leaders()) == 1)
        old = leader_of(world)
        await old.die()
        assert await world.until(lambda: bool(world.leaders())) < SETTINGS.poll_max_s + 0.4
        assert leader_of(world) is not old
        old.start(after_failure=True)

    play(story)


def test_the_history_of_a_lost_lock_has_the_reason_and_no_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: "why it ended" answers that alone. Method: the active's question meets an error that has a remedy."""

    async def story(world: World) -> None:
        await world.until(lambda: len(world.leaders()) == 1)
        service, endings = leader_of(world).service, list[Ending]()
        step_down = service.step_down

        async def note(ending: Ending) -> None:
            endings.append(ending)
            await step_down(ending)

        async def lost(_: MemoryLockSession) -> None:
            raise LockLost("the server went away")

        monkeypatch.setattr(service, "step_down", note)
        with monkeypatch.context() as patch:
            patch.setattr(MemoryLockSession, "confirm", lost)
            await world.until(lambda: bool(endings))
        assert str(endings[0]) == "lock_lost: the server went away"

    play(story)


def test_an_active_that_is_cut_off_stops_first_and_is_followed_after_the_lease() -> None:
    """Goal: claims never overlap, and the lease bounds the gap. Method: cut the active off; the observer watches."""

    async def story(world: World) -> None:
        await world.until(lambda: len(world.leaders()) == 1)
        old = leader_of(world)
        world.faults.cut_off.add(old.name)
        claimed_s = await world.until(lambda: not old.election.is_leading())
        assert claimed_s <= SETTINGS.confirmed_age_max_s + 0.02
        free_s = await world.until(lambda: bool(world.leaders()))
        assert claimed_s + free_s <= SETTINGS.lease_s + SETTINGS.poll_max_s + 0.4
        assert leader_of(world) is not old
        world.faults.cut_off.clear()
        await asyncio.sleep(10)
        assert leader_of(world) is not old

    play(story)


def test_a_stalled_active_says_passive_in_its_first_words() -> None:
    """Goal: `is_leading` is judged when asked, not when a tick comes. Method: hold up the loop past the lease."""

    async def story(world: World) -> None:
        await world.until(lambda: len(world.leaders()) == 1)
        old = leader_of(world)
        world.faults.cut_off.add(old.name)  # its heartbeats do not get out either
        old.election.stalls = lambda: 10.0
        assert await world.until(lambda: not old.election.is_leading()) <= SETTINGS.confirmed_age_max_s + 0.02
        assert old.election.role is Role.ACTIVE  # nothing ran yet that could have decided otherwise
        old.election.stalls = lambda: 0.0
        world.faults.cut_off.clear()
        await asyncio.sleep(10)
        assert old.service.roles[-1] is Role.PASSIVE

    play(story)


def test_a_machine_that_was_suspended_knows_it_at_once() -> None:
    """Goal: the claim is as old as the boot clock shows, to the millisecond. Method: the clock jumps, nothing runs."""

    async def story(world: World) -> None:
        await world.until(lambda: len(world.leaders()) == 1)
        old = leader_of(world)
        left_s = old.election.leads_until_s - world.clock.boottime_s()
        assert SETTINGS.confirmed_age_max_s - SETTINGS.heartbeat_s - 0.1 < left_s <= SETTINGS.confirmed_age_max_s
        world.clock.suspended_s += left_s - 0.001
        assert old.election.is_leading()
        world.clock.suspended_s += 0.001
        assert not old.election.is_leading()
        await world.until(lambda: old.election.role is not Role.ACTIVE, timeout_s=0.1)

    play(story)


def test_stop_releases_on_purpose_and_the_next_takes_over_at_once() -> None:
    """Goal: a graceful stop costs a poll, whatever the grace. Method: a grace of two seconds, stop the active."""
    settings = ElectionSettings(grace_s=2.0)

    async def story(world: World) -> None:
        await world.until(lambda: len(world.leaders()) == 1)
        old = leader_of(world)
        await old.finish()
        assert old.election.role is Role.ENDED
        assert await world.until(lambda: bool(world.leaders())) < 2 * settings.poll_max_s + 0.4

    play(story, settings)


@pytest.mark.parametrize("seed", range(20))
def test_an_interrupted_active_takes_its_lock_again_within_the_grace(seed: int) -> None:
    """Goal: grace lets the old active rebuild its session, as a new activation. Method: kill its session, once its
    peers have seen that it holds the lock: to them, a lock that nobody has taken since the start is free."""
    settings = ElectionSettings(grace_s=2.0)

    async def story(world: World) -> None:
        await world.until(lambda: len(world.leaders()) == 1)
        old = leader_of(world)
        await world.until(lambda: all(peer.election.owner is not None for peer in world.replicas if peer is not old))
        world.kill_holder()
        await world.until(lambda: not old.election.is_leading())
        assert await world.until(lambda: bool(world.leaders())) < settings.grace_s
        assert leader_of(world) is old
        assert old.service.activations == 2
        assert world.database.epochs == [1, 2]

    play(story, settings, seed=seed)


@pytest.mark.parametrize("seed", range(20))
def test_passives_tell_why_they_have_no_session_and_when_they_have_one_again(seed: int) -> None:
    """Goal: operators learn that nobody could take over. Method: restart the database of a quiet cluster: the active's
    loss is a change of its role, each passive reports its own; a session that is closed by a step-down is no loss."""

    async def story(world: World) -> None:
        await world.until(lambda: len(world.leaders()) == 1)
        old = leader_of(world)
        passives = [replica.service for replica in world.replicas if replica is not old]
        assert [passive.session_problems for passive in passives] == [[None], [None]]
        world.restart_server()
        await world.until(lambda: all(any(passive.session_problems) for passive in passives))  # in whatever order
        await world.until(lambda: all(passive.session_problems[-1] is None for passive in passives))
        assert await old.election.switchover() is not None
        assert all(problem is None for problem in old.service.session_problems)

    play(story, seed=seed)


def test_a_failed_activation_holds_down_and_others_go_first() -> None:
    """Goal: no ping-pong. Method: the first activation fails; another replica leads long before it asks again."""

    async def story(world: World) -> None:
        world.faults.activation_fails = 1.0
        await world.until(lambda: sum(r.service.activations for r in world.replicas) == 1)
        failed = next(r for r in world.replicas if r.service.activations)
        await world.until(lambda: failed.election.role is Role.STEPPING_DOWN)
        world.faults.activation_fails = 0.0
        assert await world.until(lambda: bool(world.leaders())) < 2.0
        assert leader_of(world) is not failed

    play(story)


def test_a_replica_alone_that_fails_tries_again_once_it_sees_that_it_is_alone() -> None:
    """Goal: a hold-down is not waited for where nobody can go first. Method: one replica, one failed activation."""

    async def story(world: World) -> None:
        world.faults.activation_fails = 1.0
        await world.until(lambda: world.replicas[0].election.role is Role.STEPPING_DOWN)
        world.faults.activation_fails = 0.0
        taken_s = await world.until(lambda: bool(world.leaders()))
        assert SETTINGS.unclaimed_s <= taken_s < SETTINGS.unclaimed_s + 1.0 < SETTINGS.hold_down_s

    play(story, names=("R1",))


def test_replicas_that_were_all_killed_do_not_wait_for_one_another() -> None:
    """Goal: after a power cut one leads before the hold-down is over. Method: kill all, start all after a failure."""

    async def story(world: World) -> None:
        await world.until(lambda: len(world.leaders()) == 1)
        for replica in world.replicas:
            await replica.die()
        for replica in world.replicas:
            replica.start(after_failure=True)
        assert await world.until(lambda: bool(world.leaders())) < SETTINGS.unclaimed_s + 1.0 < SETTINGS.hold_down_s
        assert len(world.leaders()) == 1

    play(story)


def test_one_that_was_killed_leaves_the_lock_to_one_that_was_not() -> None:
    """Goal: the early end of a hold-down takes nothing from a peer that is well, though it is slow to ask. Method: kill
    all, start one as if it had stopped in order, its index far behind and so the last in the queue."""

    async def story(world: World) -> None:
        await world.until(lambda: len(world.leaders()) == 1)
        for replica in world.replicas:
            await replica.die()
        for replica in world.replicas:
            replica.start(after_failure=replica is not world.replicas[0])
        world.replicas[0].service.lag_records = 10**9
        await world.until(lambda: bool(world.leaders()))
        assert leader_of(world) is world.replicas[0]

    play(story)


def test_a_service_that_asks_to_be_relieved_is_followed_by_another() -> None:
    """Goal: an active without its log hands over. Method: the service's own step-down."""

    async def story(world: World) -> None:
        await world.until(lambda: len(world.leaders()) == 1)
        old = leader_of(world)
        old.election.step_down(Ending(Cause.LOG_STALLED))
        old.election.step_down(Ending(Cause.LOG_STALLED))
        assert await world.until(lambda: bool(world.leaders()) and leader_of(world) is not old) < 2.0
        assert Role.ENDED not in old.service.roles

    play(story)


def test_a_replica_that_does_not_reach_the_log_never_asks() -> None:
    """Goal: only those who can lead contend. Method: one reaches the log, two do not."""

    async def story(world: World) -> None:
        for replica in world.replicas[:2]:
            replica.service.reaches_log = False
        await world.until(lambda: bool(world.leaders()))
        assert world.leaders() == ["R3"]
        world.replicas[2].service.reaches_log = False
        world.replicas[2].election.step_down(Ending(Cause.LOG_STALLED))
        await asyncio.sleep(20)
        assert world.leaders() == []
        world.replicas[0].service.reaches_log = True
        assert await world.until(lambda: world.leaders() == ["R1"]) < 1.0

    play(story)


def test_who_is_behind_lets_others_go_first_but_not_for_ever() -> None:
    """Goal: the warmest index leads; a cold one alone leads after the cap. Method: lags, then the warm one stops."""

    async def story(world: World) -> None:
        for replica, lag in zip(world.replicas, (10**9, 10_000, 0), strict=True):
            replica.service.lag_records = lag
        await world.until(lambda: bool(world.leaders()))
        assert world.leaders() == ["R3"]
        await world.replicas[2].finish()
        await world.until(lambda: bool(world.leaders()))
        assert world.leaders() == ["R2"]
        await world.replicas[1].finish()
        taken_s = await world.until(lambda: bool(world.leaders()))
        assert SETTINGS.lag_wait_max_s <= taken_s < SETTINGS.lag_wait_max_s + 1.0

    play(story)


def test_a_clock_that_is_off_costs_leadership() -> None:
    """Goal: a replica whose clock differs from the database's does not serve. Method: the database's clock jumps."""

    async def story(world: World) -> None:
        await world.until(lambda: bool(world.leaders()))
        world.server.clock_ahead_us = 5_000_000
        await world.until(lambda: not world.leaders())
        await asyncio.sleep(20)
        assert not world.leaders()
        world.server.clock_ahead_us = 0
        await world.until(lambda: len(world.leaders()) == 1)

    play(story)


def test_a_database_that_is_down_is_awaited() -> None:
    """Goal: replicas come back by themselves, bounded by the reconnect pause. Method: a minute without a server."""

    async def story(world: World) -> None:
        world.server.accepts = False
        world.restart_server()
        await asyncio.sleep(60)
        assert not world.leaders()
        world.server.accepts = True
        assert await world.until(lambda: bool(world.leaders())) < SETTINGS.reconnect_max_s * 1.5 + 1.0

    play(story)


@pytest.mark.parametrize("seed", few_quick(range(300), 60))
def test_whatever_fails_claims_do_not_overlap_and_an_active_returns(seed: int) -> None:
    """Goal: safety during the faults, liveness once they stop. Method: faults by seed, then quiet.

    The world asserts at every step: no write without the lock or under an old epoch, one transition at a time, and no
    two who claim to lead, except until the elder's next question when the server killed its session (odd seeds).
    """
    run_virtually(simulate(Random(seed), kills=bool(seed % 2)))


async def simulate(random: Random, *, kills: bool) -> None:
    settings = ElectionSettings(
        tick_s=random.choice([0.05, 0.2]),
        retry_s=random.choice([0.2, 0.5]),
        grace_s=random.choice([0.0, 0.5, 2.0]),
        hold_down_s=random.choice([0.0, 2.0, 5.0]),
        answer_max_s=random.choice([1.1, 2.0]),
    )
    world = World(random, settings)
    await make_trouble(world, kills=kills)
    quiet(world)
    await asyncio.sleep(settings.answer_max_s + 6.0)  # what was lost or held up before is noticed
    await world.until(lambda: len(world.leaders()) == 1, timeout_s=settings.hold_down_s + 20.0)
    settled = world.leaders()
    await asyncio.sleep(5.0)
    assert world.leaders() == settled
    assert world.database.epochs == sorted(set(world.database.epochs))
    assert [epoch for epoch, _ in world.database.writes] == sorted(epoch for epoch, _ in world.database.writes)
    await world.end()
    reports = await asyncio.gather(*world.switchovers)  # every one of them got its report
    assert all((report.outcome is Handover.TAKEN_OVER) == (report.took_over_by is not None) for report in reports)


async def make_trouble(world: World, *, kills: bool) -> None:
    """Ten misfortunes, a random time apart, over a network that is bad in its own way for each seed."""
    random, faults = world.random, world.faults
    for name in ("lost", "late", "broken", "stalled", "activation_fails", "step_down_breaks", "close_unheard"):
        setattr(faults, name, random.choice([0.0, 0.0, 0.01, 0.05]))
    for _ in range(10):
        await asyncio.sleep(random.uniform(0.0, 4.0))
        victim = random.choice(world.replicas)
        match random.choice(["kill", "restart", "die", "freeze", "freeze", "cut", "heal", "switch", "relieve", "log"]):
            case "kill" if kills:
                world.kill_holder()
            case "restart" if kills:
                world.restart_server()
            case "die":
                await victim.die()
                victim.start(after_failure=random.random() < 0.5)
            case "freeze":
                world.freeze_leader(random.uniform(1.0, 6.0))
            case "cut":
                faults.cut_off.add(victim.name)
            case "heal":
                faults.cut_off.clear()
            case "switch":
                world.switchovers.append(asyncio.create_task(victim.election.switchover()))
            case "relieve":
                victim.election.step_down(Ending(Cause.LOG_STALLED, "by the dice"))
            case _:
                victim.service.reaches_log = not victim.service.reaches_log
        world.check()


def quiet(world: World) -> None:
    """No more faults from here on."""
    faults = world.faults
    faults.lost = faults.late = faults.broken = faults.stalled = 0.0
    faults.activation_fails = faults.step_down_breaks = faults.close_unheard = 0.0
    faults.cut_off.clear()
    for replica in world.replicas:
        replica.service.reaches_log = True


def test_a_passive_cut_off_from_the_database_is_no_candidate() -> None:
    """Goal: readiness shows a passive that could not take over. Method: a server, then none."""

    async def story(world: World) -> None:
        await world.until(lambda: len(world.leaders()) == 1)
        passive = next(replica for replica in world.replicas if replica.name not in world.leaders())
        await world.until(passive.election.is_candidate)
        assert not leader_of(world).election.is_candidate()
        world.server.accepts = False
        world.server.end_all()
        await world.until(lambda: not passive.election.is_candidate(), timeout_s=1.0)
        world.server.accepts = True
        await world.until(lambda: len(world.leaders()) == 1)

    play(story)
