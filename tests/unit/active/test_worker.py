"""Notary workers on virtual time: every replica serves its own clients, whoever holds the lock."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from ha.lock.interface import DatabaseIdentity
from replica.active.fitness import Unfit
from replica.active.numbers import NUMBERS_PER_RANGE
from replica.link.interface import PeerSeen, SubmitOptions
from replica.log.memory import Delivery
from replica.notary.answers import Accepted, Notarised, NotNow, Refused, StateStatus
from replica.notary.codes import Code
from replica.notary.position import begin
from replica.notary.reading import read_records
from replica.notary.records import RequestRecord, decode_record
from replica.settings import CoreSettings
from tests.unit.active.workers_here import Late, SharedLog, cluster, keep_asking, make, unbroken
from tests.virtual_time import on_virtual_time
from tests.worlds.core_world import World, name_of, state, submission
from tests.worlds.worker_world import WorkerReplica


@pytest.mark.parametrize("seed", range(5))
@on_virtual_time
async def test_clients_do_not_notice_who_holds_the_lock(seed: int) -> None:
    """Goal: a change of holder costs no request, and nothing counts twice. Method: two workers whose records arrive
    late, out of order and twice; the lock is taken away six times while clients ask. Every answer is a success, with
    the ledger offset that is published; some were logged anew."""
    async with World(seed=seed) as world:
        shared = world.shared
        one, other = make(shared, Late(f"{seed}/1"), Late(f"{seed}/2"))
        async with cluster(one, other, world=world):
            asking = [
                asyncio.create_task(keep_asking(worker, 1_000 * at + 100 * client, 60))
                for at, worker in enumerate((one, other), 1)
                for client in range(3)
            ]
            for _ in range(6):
                await asyncio.sleep(0.15)
                shared.lock_server.end_all()
            answers = [answer for answers in await asyncio.gather(*asking) for answer in answers]
            await asyncio.sleep(5)
            unbroken(one, other)
            assert [answer for answer in answers if not isinstance(answer, Notarised)] == []
            assert len(answers) == 360
            completions = shared.database.completions
            assert sorted(completion.submission_id for _, completion in completions) == sorted(
                f"s{1_000 * at + 100 * client + n}" for at in (1, 2) for client in range(3) for n in range(60)
            )
            published = {completion.tx_id: at for at, completion in completions}
            told = {a.tx_id: a.ledger_offset for a in answers if isinstance(a, Notarised) and a.ledger_offset}
            assert told.items() <= published.items()
            assert len(told) > 300
            assert one.index.position() == other.index.position()
            reading = read_records(begin("memory-1"), shared.topic.records(0, 100_000))
            assert len(reading.barriers) > 3
            assert len({number_of(value) for _, value in shared.topic.records(1, 100_000)}) > 361  # logged anew


def number_of(value: bytes) -> int | None:
    record = decode_record(value, 2)
    return record.sequence if isinstance(record, RequestRecord) else None


@on_virtual_time
async def test_service_goes_on_while_nobody_holds_the_lock_and_completions_follow() -> None:
    """Goal: the end of the holder pauses completions, and not service. Method: no core is left; later one comes."""
    with pytest.raises(TimeoutError):
        async with World() as world:
            (worker,) = make(world.shared, Delivery())
            async with cluster(worker, world=world, cores=0):
                raise AssertionError("a worker serves before the first barrier")
    async with World() as world:
        (worker,) = make(world.shared, Delivery())
        core = await world.replica(1)
        await core.until_active()
        async with cluster(worker, world=world, cores=0):
            await core.stop()
            assert [type(answer) for answer in await keep_asking(worker, 1, 20)] == [Notarised] * 20
            assert world.shared.database.completions == []
            late = await world.replica(2)
            await late.until_active()
            await asyncio.sleep(1)
            assert [c.submission_id for _, c in world.shared.database.completions] == [f"s{n}" for n in range(1, 21)]
            assert worker.worker.ledger_end == 20


@on_virtual_time
async def test_a_state_is_spent_once_wherever_it_is_asked_for() -> None:
    """Goal: no double spend. Method: forty rounds; three workers get a request for one state at a time each."""
    async with World() as world:
        workers = make(world.shared, *[Late(f"{n}") for n in range(3)])
        async with cluster(*workers, world=world):
            for number in range(40):
                asked = [
                    worker.submit(submission(1_000 * at + number, [state(number)], submission_id=f"s{at}-{number}"))
                    for at, worker in enumerate(workers, 1)
                ]
                outcomes = Counter(type(answer) for answers in await asyncio.gather(*asked) for answer in answers)
                assert outcomes == {Notarised: 1, Refused: 2}
            unbroken(*workers)


@on_virtual_time
async def test_a_command_runs_once_whichever_workers_get_it() -> None:
    """Goal: one acceptance of a command. Method: the same at three workers at once, and once more later."""
    async with World() as world:
        workers = make(world.shared, *[Late(f"{n}") for n in range(3)])
        async with cluster(*workers, world=world):
            same = submission(1, [state(1)], command_id="c")
            answers = [a for found in await asyncio.gather(*[w.submit(same) for w in workers]) for a in found]
            assert [type(answer) for answer in answers] == [Notarised] * 3
            assert sum(not a.duplicate for a in answers if isinstance(a, Notarised)) == 1
            assert len({a.log_offset for a in answers if isinstance(a, Notarised)}) == 1
            (again,) = await workers[0].submit(same)
            assert isinstance(again, Notarised)
            assert again.record_offset is None  # its own index knows
            (accepted,) = await workers[1].submit(submission(2, [state(2)]), options=SubmitOptions(True))
            assert isinstance(accepted, Accepted)


@on_virtual_time
async def test_a_user_s_queue_is_shared_among_those_that_serve() -> None:
    """Goal: `user_queue_max` holds for the cluster. Method: a worker that sees two others serve, and later none; a user
    submits far more at once than it may."""
    async with World(core=CoreSettings(user_queue_max=30, pipeline_max=25, admit_batch_max=10)) as world:
        (worker,) = make(world.shared)

        async def taken(first: int) -> int:
            asked = [submission(tx, [state(tx)], submission_id=f"s{tx}") for tx in range(first, first + 60)]
            return sum(isinstance(answer, Notarised) for answer in await worker.submit(*asked))

        async with cluster(worker, world=world):
            others = [PeerSeen(name, active=True, epoch=1, seen_us=1, answers=True) for name in ("r2", "r3")]
            worker.worker.note_peers(others)
            assert await taken(1) == 10
            worker.worker.note_peers([])
            assert await taken(100) == 30


@on_virtual_time
async def test_a_worker_draws_the_log_to_no_server() -> None:
    """Goal: where each log server can lead, workers do not take the lead from one another. Method: a log that tells
    which kind of writer is opened, at first and after that one has ended."""
    async with World() as world:
        (worker,) = make(world.shared)
        log = SharedLog(world.shared.topic)
        worker.worker._parts = replace(worker.worker._parts, request_log=log)
        async with cluster(worker, world=world):
            log.opened[-1].ended = True
            await asyncio.sleep(0.3)
            assert isinstance((await worker.submit(submission(1, [state(1)])))[0], Notarised)
            assert len(log.opened) == 2


@on_virtual_time
async def test_each_start_draws_numbers_and_a_promoted_database_gives_new_ones() -> None:
    """Goal: ranges never meet. Method: three workers; one starts again; a standby is promoted that lacks the draws."""
    async with World() as world:
        shared = world.shared
        workers = make(shared, Delivery(), Delivery(), Delivery())
        async with cluster(*workers, world=world):
            again = WorkerReplica(shared, "W1 again")
            async with cluster(again, world=world, cores=0):
                starts = {start_of(each) for each in (*workers, again)}
                assert starts == {n * NUMBERS_PER_RANGE for n in (1, 2, 3, 4)}
                shared.database.drawn = 0  # what the standby never got
                shared.lock_server.identity = DatabaseIdentity("memory", "memory", 2)
                for worker in (*workers, again):
                    (answer,) = await worker.submit(submission(10 + start_of(worker) // NUMBERS_PER_RANGE))
                    assert isinstance(answer, Notarised)  # under the former activation, with the former numbers
                assert shared.database.drawn == 0
                shared.lock_server.end_all()
                await asyncio.sleep(5)
                asked = [worker.submit(submission(20 + at)) for at, worker in enumerate((*workers, again))]
                assert [type(a) for found in await asyncio.gather(*asked) for a in found] == [Notarised] * 4
                assert {start_of(each) for each in (*workers, again)} == starts
                assert shared.database.drawn == 4
                unbroken(*workers, again)


def start_of(worker: WorkerReplica) -> int:
    numbers = worker.worker._numbers
    assert numbers is not None
    return numbers.range.start


@on_virtual_time
async def test_ranges_that_meet_end_the_process_and_answer_nobody() -> None:
    """Goal: fail closed. Method: two workers are given one range, and log different requests."""
    async with World() as world:
        one, other = make(world.shared, Delivery(), Late("x"))
        async with cluster(one, other, world=world):
            other.worker._numbers = one.worker._numbers.__class__(one.worker._numbers.range)  # type: ignore[union-attr]
            asking = asyncio.create_task(other.submit(submission(2, [state(2)])))
            await asyncio.sleep(0)
            (first,) = await one.submit(submission(1, [state(1)]))
            assert isinstance(first, Notarised)
            await asyncio.sleep(1)
            assert "numbers were given twice" in str(other.broken[0])
            await other.stop()
            (answer,) = await asking
            assert isinstance(answer, NotNow)
            assert answer.code == Code.OUTCOME_UNKNOWN.name


@on_virtual_time
async def test_a_clock_that_is_off_stamps_nothing() -> None:
    """Goal: one fast clock closes nobody's windows. Method: a clock that is off from the start; one that jumps between
    two requests: the second is not logged; the clock comes back."""
    with pytest.raises(TimeoutError):
        async with World() as world:
            good, fast = make(world.shared, Delivery(), Delivery())
            fast.clock.ahead_us = 3_000_000
            async with cluster(good, world=world), cluster(fast, world=world, cores=0):
                raise AssertionError("it serves")
    async with World() as world:
        (worker,) = make(world.shared, Delivery())
        async with cluster(worker, world=world):
            assert isinstance((await worker.submit(submission(1, [state(1)])))[0], Notarised)
            end = world.shared.topic.end_offset
            worker.clock.ahead_us = 3_600_000_000
            (answer,) = await worker.submit(submission(2, [state(2)]))
            assert isinstance(answer, NotNow)
            assert answer.code == Code.NOT_ACTIVE.name
            assert world.shared.topic.end_offset == end
            assert worker.worker.unfit is not None
            assert worker.worker.unfit[0] is Unfit.CLOCK
            worker.clock.ahead_us = 0
            await worker.until_serving()
            assert isinstance((await worker.submit(submission(2, [state(2)])))[0], Notarised)


@pytest.mark.thorough
@on_virtual_time
async def test_service_goes_on_while_the_database_is_away() -> None:
    """Goal: the database is not in the way of an answer. Method: ten minutes without it for a worker; another worker
    that starts meanwhile does not serve, since it has no numbers."""
    async with World() as world:
        one, other = make(world.shared, Delivery(), Delivery())
        async with cluster(one, world=world):
            one.database_is_away = other.database_is_away = True
            other.start()
            for minute in range(10):
                await asyncio.sleep(60)
                (answer,) = await one.submit(submission(minute, [state(minute)]))
                assert isinstance(answer, Notarised)
            assert other.worker.unfit == (Unfit.NO_NUMBERS, other.worker.unfit[1])  # type: ignore[index]
            one.database_is_away = other.database_is_away = False
            await other.until_serving()
            await other.stop()


@on_virtual_time
async def test_not_found_needs_an_end_that_most_servers_of_the_log_confirm() -> None:
    """Goal: nobody is told that a transaction is not there which another worker notarised. Method: a worker's broker is
    cut off and shows the log as it was; the worker says that it does not know. Then it is back."""
    async with World() as world:
        one, other = make(world.shared, Delivery(), Delivery())
        async with cluster(one, other, world=world):
            await asyncio.sleep(1)
            other.log.old_end = world.shared.topic.end_offset
            for reader in list(other.log._open):
                reader.old_end = other.log.old_end  # type: ignore[union-attr]
            await one.submit(submission(1, [state(1)]))
            answers = await asyncio.gather(other.link.look_up(name_of(1)), other.link.look_up_state(state(1)))
            assert all(isinstance(answer, NotNow) or not denies(answer) for answer in answers)
            other.log.old_end = None
            for reader in list(other.log._open):
                reader.old_end = None  # type: ignore[union-attr]
            await asyncio.sleep(10)
            await other.until_serving()
            assert isinstance(await other.link.look_up(name_of(1)), Notarised)
            missing = await other.link.look_up(name_of(9))
            assert isinstance(missing, Refused)
            assert missing.code == Code.TX_NOT_FOUND.name


def denies(answer: object) -> bool:
    return isinstance(answer, Refused) or (isinstance(answer, StateStatus) and answer.consumed_by is None)


@on_virtual_time
async def test_a_ledger_offset_is_counted_in_the_log() -> None:
    """Goal: nobody waits for the database to say where a completion is. Method: it is away; a submission names the
    newest ledger offset, another one the next."""
    async with World() as world:
        (worker,) = make(world.shared, Delivery())
        async with cluster(worker, world=world):
            await keep_asking(worker, 1, 3)
            worker.database_is_away = True
            (answer,) = await worker.submit(submission(7, [state(7)]), options=SubmitOptions(deduplication_after=3))
            assert isinstance(answer, Notarised)
            assert answer.ledger_offset == 4
            (above,) = await worker.submit(submission(9, [state(9)]), options=SubmitOptions(deduplication_after=5))
            assert isinstance(above, NotNow)
            assert above.code == Code.OFFSET_AFTER_END.name


@on_virtual_time
async def test_past_the_bounds_a_worker_refuses() -> None:
    """Goal: what waits for a barrier, numbers or the clock is bounded by the intake. Method: three places; a record
    that does not come back holds one, a clock that jumped the others."""
    async with World(core=CoreSettings(in_flight_max=3)) as world:
        (worker,) = make(world.shared, Delivery())
        async with cluster(worker, world=world):
            worker.clock.ahead_us = 3_600_000_000
            answers = await worker.submit(
                *(submission(n, [state(n)], submission_id=f"s{n}", user_id=f"u{n}") for n in range(1, 6))
            )
            codes = [answer.code for answer in answers if isinstance(answer, NotNow)]
            assert codes == [Code.NOT_ACTIVE.name] * 3 + [Code.OVERLOADED.name] * 2
