"""One activation after another, on virtual time: what the next one settles, publishes and voids of an earlier one."""

from __future__ import annotations

import asyncio

import pytest

from ha.lock.memory import Network
from ha.settings import ElectionSettings
from replica.log.memory import Delivery
from replica.notary.answers import Notarised, NotNow
from replica.notary.codes import Code
from replica.notary.granters import Database
from replica.notary.records import BarrierRecord, RequestRecord, decode_record, encode_record
from replica.settings import CoreSettings
from tests.virtual_time import on_virtual_time
from tests.worlds.core_world import BEGUN, Replica, World, state, submission


@on_virtual_time
async def test_the_next_active_publishes_what_its_predecessor_did_not() -> None:
    """Goal: completions past the published position come from the log. Method: R1 is cut off before it publishes."""
    async with World(core=CoreSettings(publish_linger_s=1.0)) as world:
        first = await world.replica(1)
        await first.until_active()
        second = await world.replica(2)
        (answer,) = await first.submit(submission(1, [state(9)]))
        assert isinstance(answer, Notarised)
        assert world.shared.database.completions == []
        world.shared.lock_server.end_all()
        await second.until_active()
        assert [c.log_offset for _, c in world.shared.database.completions] == [BEGUN + 1]
        (again,) = await second.submit(submission(1, [state(9)]))
        assert isinstance(again, Notarised)
        assert (again.log_offset, again.duplicate) == (BEGUN + 1, True)


@on_virtual_time
async def test_a_deposed_replica_s_late_record_is_void_and_never_answered_ok() -> None:
    """Goal: fencing by activation id. Method: hold R1's append back until R2's barrier is in force."""
    async with World() as world:
        first = await world.replica(1)
        held: list[bytes] = []

        class Holding(Delivery):
            def send(self, value: bytes, topic: object, give_up: object) -> None:
                held.append(value) if isinstance(decode_record(value, 2), RequestRecord) else topic.store(value)  # type: ignore[attr-defined,func-returns-value]

        first.log._delivery = Holding
        await first.until_active()
        second = await world.replica(2)
        waiting = asyncio.create_task(first.submit(submission(1, [state(9)])))
        await asyncio.sleep(0.1)
        world.shared.lock_server.end_all()
        await second.until_active()
        for value in held:
            world.shared.topic.store(value)
        (late,) = await waiting
        assert isinstance(late, NotNow)
        assert late.code == Code.NOT_ACTIVE.name
        (answer,) = await second.submit(submission(2, [state(9)]))
        assert isinstance(answer, Notarised), "the void record spent nothing"
        assert second.participant.counters.voids == {"not_in_force": 1}


@on_virtual_time
async def test_a_replica_whose_barrier_is_void_raises_the_epoch_and_writes_again() -> None:
    """Goal: rule 2, the database forgot epochs. Method: a barrier of epoch 7 is in the log, the database has 0."""
    async with World() as world:
        replica = Replica(world.shared, "R1")
        barrier = BarrierRecord(7, b"z" * 16, "R9", Database("elsewhere", "1", 1), 2, 3)

        class Late(Delivery):
            """Another barrier gets in just before the replica's first one."""

            def send(self, value: bytes, topic: object, give_up: object) -> None:
                if world.shared.topic.end_offset == BEGUN:
                    world.shared.topic.store(encode_record(barrier))
                world.shared.topic.store(value)

        replica.log._delivery = Late
        replica.start()
        world.push_async_callback(replica.stop)
        await replica.until_active()
        assert replica.participant.epoch == 8
        assert replica.participant.counters.voids == {"barrier_not_higher": 1}


@pytest.mark.parametrize("cut", range(12))
@on_virtual_time
async def test_an_interrupted_active_takes_its_lock_again_although_statements_were_in_flight(cut: int) -> None:
    """Goal: grace works under load: the session alone reports its end, once, so its holder races and does not hold
    down. Method: end the session at a dozen moments of a stream of submissions; a warm peer waits for the grace."""
    settings = ElectionSettings(grace_s=2.0, hold_down_s=30.0)
    async with World(election=settings, core=CoreSettings(publish_linger_s=0.0)) as world:
        world.shared.lock_server.network = SlowNetwork()
        first = await world.replica(1)
        await first.until_active()
        second = await world.replica(2)
        await asyncio.sleep(1.0)
        asking = [asyncio.create_task(first.submit(submission(tx, [state(tx)]))) for tx in range(1, 40)]
        asking += [asyncio.create_task(submit_later(first, tx)) for tx in range(40, 80)]
        await asyncio.sleep(0.003 * cut)
        world.shared.lock_server.end_all()
        ended_s = world.shared.clock.boottime_s()
        while first.participant.standing().active:
            await asyncio.sleep(0.001)
        await first.until_active()
        assert world.shared.clock.boottime_s() - ended_s < settings.grace_s
        assert not second.participant.standing().active
        assert second.participant.counters.activations == 0
        await asyncio.gather(*asking)


async def submit_later(replica: Replica, tx: int) -> None:
    await asyncio.sleep(0.001 * (tx - 40))
    await replica.submit(submission(tx, [state(tx)]))


class SlowNetwork(Network):
    """A few milliseconds each way, so that there are statements in flight."""

    async def request(self, session: str, statement: str) -> None:
        await asyncio.sleep(0.002)

    async def answer(self, session: str, statement: str) -> None:
        await asyncio.sleep(0.002)
