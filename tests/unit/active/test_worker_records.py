"""Records of a worker that are late, lost, overtaken or in doubt."""

from __future__ import annotations

import asyncio
from collections import Counter

from replica.active.own_records import VOIDED_MAX
from replica.log.memory import Delivery
from replica.notary.answers import Notarised, NotNow
from replica.notary.codes import Code
from replica.notary.granters import Database, Release
from replica.notary.records import BarrierRecord, RequestRecord, decode_record, encode_record
from replica.notary.terms import signed_in
from tests.simulation.virtual import run_virtually
from tests.unit.active.workers_here import (
    Keeping,
    Losing,
    cluster,
    keep_asking,
    make,
    sent_and_not_stored,
    unbroken,
    writers_that_end,
)
from tests.virtual_time import on_virtual_time
from tests.worlds.core_world import FIRST_EPOCH, World, state, submission


@on_virtual_time
async def test_what_a_barrier_overtook_is_logged_anew_even_if_it_was_lost() -> None:
    """Goal: a lost append costs nothing once a barrier made it void; before that nothing is logged anew. Method: the
    log's client loses a record; then the lock changes hands."""
    async with World() as world:
        losing = Losing()
        (worker,) = make(world.shared, losing)
        async with cluster(worker, world=world):
            losing.is_losing = True
            asking = asyncio.create_task(worker.submit(submission(1, [state(1)])))
            await asyncio.sleep(0.3)
            losing.is_losing = False
            end = world.shared.topic.end_offset
            await asyncio.sleep(0.3)
            assert world.shared.topic.end_offset == end
            world.shared.lock_server.end_all()
            (answer,) = await asking
            assert isinstance(answer, Notarised)


@on_virtual_time
async def test_a_record_that_never_comes_back_takes_the_worker_out_and_its_sender_is_told_the_truth() -> None:
    """Goal: unknown is called unknown; the worker comes back. Method: the log's client loses a record for good."""
    async with World() as world:
        losing = Losing()
        (worker,) = make(world.shared, losing)
        async with cluster(worker, world=world):
            losing.is_losing = True
            (answer,) = await worker.submit(submission(1, [state(1)]))
            assert isinstance(answer, NotNow)
            assert answer.code == Code.OUTCOME_UNKNOWN.name
            losing.is_losing = False
            (refused,) = await worker.submit(submission(2, [state(2)]))
            assert isinstance(refused, NotNow)
            assert refused.code == Code.NOT_ACTIVE.name
            await worker.until_serving()
            assert isinstance((await worker.submit(submission(1, [state(1)])))[0], Notarised)


@on_virtual_time
async def test_a_writer_that_ends_is_replaced_and_only_what_it_had_is_in_doubt() -> None:
    """Goal: a broken connection to the log costs no service. Method: three writers end: with nothing unread, with a
    record that comes later, with one that is lost, while others come. Each record is in the log once at most, and the
    lost one is never logged again without a barrier."""
    async with World() as world:
        keeping = Keeping()
        (worker,) = make(world.shared)
        writers = writers_that_end(worker, keeping)
        async with cluster(worker, world=world):
            server = worker.worker.server
            writers[-1].ended = True
            assert [type(answer) for answer in await keep_asking(worker, 1, 5)] == [Notarised] * 5

            in_doubt = await sent_and_not_stored(worker, 10, keeping, writers)
            asyncio.get_running_loop().call_later(0.2, lambda: world.shared.topic.store(keeping.kept.pop()))
            assert [type(answer) for answer in await keep_asking(worker, 11, 5)] == [Notarised] * 5
            assert isinstance((await in_doubt)[0], Notarised)

            in_doubt = await sent_and_not_stored(worker, 20, keeping, writers)
            assert [type(answer) for answer in await keep_asking(worker, 21, 5)] == [Notarised] * 5
            (lost,) = await in_doubt
            assert isinstance(lost, NotNow)
            assert lost.code == Code.OUTCOME_UNKNOWN.name
            world.shared.lock_server.end_all()
            await asyncio.sleep(2)
            assert worker.worker.server is server
            assert server is not None
            budget = server.intake.budget
            assert (budget.submissions, budget.states, len(writers)) == (0, 0, 4)
            logged = Counter(
                signed_in(record).terms.command_id
                for _, value in world.shared.topic.records(1, 100_000)
                if isinstance(record := decode_record(value, 2), RequestRecord)
            )
            assert logged == Counter(f"c{n}" for n in (*range(1, 6), *range(10, 16), *range(21, 26)))
            unbroken(worker)


def test_what_an_ended_writer_had_is_logged_anew_once_a_barrier_made_it_void() -> None:
    """Goal: attack 2's rule, across two writers. Method: a record is lost with its writer; a barrier comes while it is
    waited for. Then no writer can be opened: the worker stops, and serves again later."""

    async def story() -> None:
        async with World() as world:
            keeping = Keeping()
            (worker,) = make(world.shared)
            writers = writers_that_end(worker, keeping)
            async with cluster(worker, world=world):
                in_doubt = await sent_and_not_stored(worker, 1, keeping, writers)
                await asyncio.sleep(0.15)
                assert (len(writers), in_doubt.done()) == (2, False)
                world.shared.topic.store(
                    encode_record(BarrierRecord(9, bytes(16), "R9", Database("memory", "memory", 1), 2, 3))
                )
                assert isinstance((await in_doubt)[0], Notarised)

    async def other_story() -> None:
        async with World() as world:
            (worker,) = make(world.shared)
            writers = writers_that_end(worker, Delivery())
            async with cluster(worker, world=world):
                worker.log.reachable, writers[-1].ended = False, True
                await asyncio.sleep(0.2)
                assert not worker.worker.is_serving
                worker.log.reachable = True
                await worker.until_serving()
                assert [type(answer) for answer in await keep_asking(worker, 1, 5)] == [Notarised] * 5

    run_virtually(story())
    run_virtually(other_story())


@on_virtual_time
async def test_holders_that_change_without_end_keep_nobody_waiting_for_ever() -> None:
    """Goal: a bound. Method: what is sent is lost, and barriers come faster than the worker loses its patience."""
    async with World() as world:
        losing = Losing()
        (worker,) = make(world.shared, losing)
        core = await world.replica(1)
        await core.until_active()
        async with cluster(worker, world=world, cores=0):
            await core.stop()
            losing.is_losing = True
            asking = asyncio.create_task(worker.submit(submission(1, [state(1)])))
            for epoch in range(FIRST_EPOCH + 1, FIRST_EPOCH + 1 + VOIDED_MAX):
                await asyncio.sleep(1.0)
                assert not asking.done()
                barrier = BarrierRecord(epoch, bytes([epoch]) * 16, "R9", Database("memory", "memory", 1), 2, 3)
                world.shared.topic.store(encode_record(barrier))
            (answer,) = await asking
            assert isinstance(answer, NotNow)
            assert answer.code == Code.NOT_ACTIVE.name
            sent = worker.worker._numbers
            assert sent is not None
            assert sent.range.end - sent.range.start - sent.left == VOIDED_MAX


@on_virtual_time
async def test_a_release_that_nobody_follows_holds_nobody_up_for_long() -> None:
    """Goal: clients try elsewhere, or later. Method: a release and no claim: refused within a second, not logged."""
    async with World() as world:
        (worker,) = make(world.shared)
        core = await world.replica()
        await core.until_active()
        async with cluster(worker, world=world, cores=0):
            await core.stop()
            release = BarrierRecord(9, b"r" * 16, "", Release("R1"), 2, 3)
            world.shared.topic.store(encode_record(release))
            await asyncio.sleep(0.05)
            end = world.shared.topic.end_offset
            async with asyncio.timeout(1.0):
                (answer,) = await worker.submit(submission(1, [state(1)]))
            assert isinstance(answer, NotNow)
            assert answer.code == Code.NOT_ACTIVE.name
            assert world.shared.topic.end_offset == end
