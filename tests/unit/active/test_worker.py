"""Notary workers on virtual time: every replica serves its own clients, whoever holds the lock."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import replace
from random import Random

import pytest

from ha.lock.interface import DatabaseIdentity
from replica.active.fitness import Unfit
from replica.active.numbers import NUMBERS_PER_RANGE
from replica.active.own_records import VOIDED_MAX
from replica.link.interface import PeerSeen, SubmitOptions
from replica.log.interface import Lifeline
from replica.log.memory import Delivery, MemoryLog, MemoryTopic, MemoryWriter
from replica.notary.answers import Accepted, Answer, Notarised, NotNow, Refused, StateStatus
from replica.notary.codes import Code
from replica.notary.errors import LogUnavailable
from replica.notary.leases import release_text
from replica.notary.position import begin
from replica.notary.reading import read_records
from replica.notary.records import BarrierRecord, RequestRecord, decode_record, encode_record
from replica.notary.terms import signed_in
from replica.settings import CoreSettings
from tests.simulation.virtual import run_virtually
from tests.worlds.core_world import FIRST_EPOCH, Shared, World, name_of, state, submission
from tests.worlds.worker_world import WorkerReplica


class Late(Delivery):
    """Records reach the log after up to 30 ms, in any order; now and then one twice."""

    def __init__(self, seed: str) -> None:
        self._random = Random(seed)

    def send(self, value: bytes, topic: MemoryTopic, give_up: object) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(1 + (self._random.random() < 0.1)):
            loop.call_later(0.03 * self._random.random(), topic.store, value)


class Losing(Delivery):
    """Loses what is sent while `is_losing`, without a word."""

    is_losing = False

    def send(self, value: bytes, topic: MemoryTopic, give_up: object) -> None:
        if not self.is_losing:
            topic.store(value)


class Keeping(Delivery):
    """Keeps what is sent while `is_keeping`: it may be stored later."""

    is_keeping = False

    def __init__(self) -> None:
        self.kept: list[bytes] = []

    def send(self, value: bytes, topic: MemoryTopic, give_up: object) -> None:
        if self.is_keeping:
            self.kept.append(value)
        else:
            topic.store(value)


class EndingWriter(MemoryWriter):
    """Ends as a writer whose connection breaks: what it was given last may be in the log, or come there yet."""

    ended = False

    @property
    def has_ended(self) -> bool:
        return self.ended or super().has_ended

    def append(self, value: bytes) -> None:
        if self.ended:
            raise LogUnavailable("the writer has failed")
        super().append(value)


class SharedLog(MemoryLog):
    """See WatchingLog. Its other writers would draw the log to the replica's own server."""

    def __init__(self, topic: MemoryTopic) -> None:
        super().__init__(topic)
        self.opened: list[EndingWriter] = []

    def tie(self, activation_id: bytes) -> Lifeline:
        raise NotImplementedError

    async def wait_for_end(self, activation_id: bytes) -> None:
        raise NotImplementedError

    async def open_shared_writer(self) -> EndingWriter:
        self.opened.append(EndingWriter(self, self._topic, Delivery()))
        return self.opened[-1]

    async def open_writer(self) -> MemoryWriter:
        raise AssertionError("it draws the log to its own server")


def writers_that_end(worker: WorkerReplica, delivery: Delivery) -> list[EndingWriter]:
    """The writers that this replica opens from now on."""
    opened: list[EndingWriter] = []

    async def open_writer() -> EndingWriter:
        await asyncio.sleep(0.01)
        if not worker.log.reachable:
            raise LogUnavailable("out of reach")
        opened.append(EndingWriter(worker.log, worker.shared.topic, delivery))
        return opened[-1]

    worker.log.open_writer = open_writer  # type: ignore[method-assign]
    return opened


async def sent_and_not_stored(
    worker: WorkerReplica, tx: int, keeping: Keeping, writers: list[EndingWriter]
) -> asyncio.Task[list[Answer]]:
    """A submission whose record the newest writer was given before it ended."""
    keeping.is_keeping, count = True, len(keeping.kept)
    asking = asyncio.create_task(worker.submit(submission(tx, [state(tx)])))
    await asyncio.sleep(0.01)
    assert len(keeping.kept) == count + 1
    keeping.is_keeping, writers[-1].ended = False, True
    return asking


@asynccontextmanager
async def cluster(*workers: WorkerReplica, world: World, cores: int = 2) -> AsyncIterator[None]:
    """Cores that hold the lock in turn, and workers; all serve on entry."""
    replicas = [await world.replica(number + 1) for number in range(cores)]
    if replicas:
        await replicas[0].until_active()
    for worker in workers:
        worker.start()
    try:
        for worker in workers:
            await worker.until_serving()
        yield
    finally:
        for worker in workers:
            await worker.stop()


def make(shared: Shared, *deliveries: Delivery) -> list[WorkerReplica]:
    return [
        WorkerReplica(shared, f"W{at}", lambda delivery=delivery: delivery)  # type: ignore[misc]
        for at, delivery in enumerate(deliveries or (Delivery(),), 1)
    ]


async def keep_asking(worker: WorkerReplica, first: int, count: int) -> list[Answer]:
    """Requests one after the other, each with a state of its own."""
    answers: list[Answer] = []
    for tx in range(first, first + count):
        answers += await worker.submit(submission(tx, [state(tx)], submission_id=f"s{tx}"))
    return answers


def unbroken(*workers: WorkerReplica) -> None:
    assert [error for worker in workers for error in worker.broken] == []


@pytest.mark.parametrize("seed", range(5))
def test_clients_do_not_notice_who_holds_the_lock(seed: int) -> None:
    """Goal: a change of holder costs no request, and nothing counts twice. Method: two workers whose records arrive
    late, out of order and twice; the lock is taken away six times while clients ask. Every answer is a success, with
    the ledger offset that is published; some were logged anew."""

    async def story() -> None:
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

    run_virtually(story())


def number_of(value: bytes) -> int | None:
    record = decode_record(value, 2)
    return record.sequence if isinstance(record, RequestRecord) else None


def test_service_goes_on_while_nobody_holds_the_lock_and_completions_follow() -> None:
    """Goal: the end of the holder pauses completions, and not service. Method: no core is left; later one comes."""

    async def story() -> None:
        async with World() as world:
            (worker,) = make(world.shared, Delivery())
            async with cluster(worker, world=world, cores=0):
                raise AssertionError("a worker serves before the first barrier")

    with pytest.raises(TimeoutError):
        run_virtually(story())

    async def other_story() -> None:
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
                assert [c.submission_id for _, c in world.shared.database.completions] == [
                    f"s{n}" for n in range(1, 21)
                ]
                assert worker.worker.ledger_end == 20

    run_virtually(other_story())


def test_a_state_is_spent_once_wherever_it_is_asked_for() -> None:
    """Goal: no double spend. Method: forty rounds; three workers get a request for one state at a time each."""

    async def story() -> None:
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

    run_virtually(story())


def test_a_command_runs_once_whichever_workers_get_it() -> None:
    """Goal: one acceptance of a command. Method: the same at three workers at once, and once more later."""

    async def story() -> None:
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

    run_virtually(story())


def test_what_a_barrier_overtook_is_logged_anew_even_if_it_was_lost() -> None:
    """Goal: a lost append costs nothing once a barrier made it void; before that nothing is logged anew. Method: the
    log's client loses a record; then the lock changes hands."""

    async def story() -> None:
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

    run_virtually(story())


def test_a_record_that_never_comes_back_takes_the_worker_out_and_its_sender_is_told_the_truth() -> None:
    """Goal: unknown is called unknown; the worker comes back. Method: the log's client loses a record for good."""

    async def story() -> None:
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

    run_virtually(story())


def test_a_user_s_queue_is_shared_among_those_that_serve() -> None:
    """Goal: `user_queue_max` holds for the cluster. Method: a worker that sees two others serve, and later none; a user
    submits far more at once than it may."""

    async def story() -> None:
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

    run_virtually(story())


def test_a_writer_that_ends_is_replaced_and_only_what_it_had_is_in_doubt() -> None:
    """Goal: a broken connection to the log costs no service. Method: three writers end: with nothing unread, with a
    record that comes later, with one that is lost, while others come. Each record is in the log once at most, and the
    lost one is never logged again without a barrier."""

    async def story() -> None:
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

    run_virtually(story())


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
                world.shared.topic.store(encode_record(BarrierRecord(9, bytes(16), "R9", "memory:memory:1", 2, 3)))
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


def test_holders_that_change_without_end_keep_nobody_waiting_for_ever() -> None:
    """Goal: a bound. Method: what is sent is lost, and barriers come faster than the worker loses its patience."""

    async def story() -> None:
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
                    barrier = BarrierRecord(epoch, bytes([epoch]) * 16, "R9", "memory:memory:1", 2, 3)
                    world.shared.topic.store(encode_record(barrier))
                (answer,) = await asking
                assert isinstance(answer, NotNow)
                assert answer.code == Code.NOT_ACTIVE.name
                sent = worker.worker._numbers
                assert sent is not None
                assert sent.range.end - sent.range.start - sent.left == VOIDED_MAX

    run_virtually(story())


def test_a_release_that_nobody_follows_holds_nobody_up_for_long() -> None:
    """Goal: clients try elsewhere, or later. Method: a release and no claim: refused within a second, not logged."""

    async def story() -> None:
        async with World() as world:
            (worker,) = make(world.shared)
            core = await world.replica()
            await core.until_active()
            async with cluster(worker, world=world, cores=0):
                await core.stop()
                release = BarrierRecord(9, b"r" * 16, "", release_text("memory-1", "R1"), 2, 3)
                world.shared.topic.store(encode_record(release))
                await asyncio.sleep(0.05)
                end = world.shared.topic.end_offset
                async with asyncio.timeout(1.0):
                    (answer,) = await worker.submit(submission(1, [state(1)]))
                assert isinstance(answer, NotNow)
                assert answer.code == Code.NOT_ACTIVE.name
                assert world.shared.topic.end_offset == end

    run_virtually(story())


def test_a_worker_draws_the_log_to_no_server() -> None:
    """Goal: where each log server can lead, workers do not take the lead from one another. Method: a log that tells
    which kind of writer is opened, at first and after that one has ended."""

    async def story() -> None:
        async with World() as world:
            (worker,) = make(world.shared)
            log = SharedLog(world.shared.topic)
            worker.worker._parts = replace(worker.worker._parts, request_log=log)
            async with cluster(worker, world=world):
                log.opened[-1].ended = True
                await asyncio.sleep(0.3)
                assert isinstance((await worker.submit(submission(1, [state(1)])))[0], Notarised)
                assert len(log.opened) == 2

    run_virtually(story())


def test_each_start_draws_numbers_and_a_promoted_database_gives_new_ones() -> None:
    """Goal: ranges never meet. Method: three workers; one starts again; a standby is promoted that lacks the draws."""

    async def story() -> None:
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

    run_virtually(story())


def start_of(worker: WorkerReplica) -> int:
    numbers = worker.worker._numbers
    assert numbers is not None
    return numbers.range.start


def test_ranges_that_meet_end_the_process_and_answer_nobody() -> None:
    """Goal: fail closed. Method: two workers are given one range, and log different requests."""

    async def story() -> None:
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

    run_virtually(story())


def test_a_clock_that_is_off_stamps_nothing() -> None:
    """Goal: one fast clock closes nobody's windows. Method: a clock that is off from the start; one that jumps between
    two requests: the second is not logged; the clock comes back."""

    async def story() -> None:
        async with World() as world:
            good, fast = make(world.shared, Delivery(), Delivery())
            fast.clock.ahead_us = 3_000_000
            async with cluster(good, world=world), cluster(fast, world=world, cores=0):
                raise AssertionError("it serves")

    with pytest.raises(TimeoutError):
        run_virtually(story())

    async def other_story() -> None:
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

    run_virtually(other_story())


@pytest.mark.thorough
def test_service_goes_on_while_the_database_is_away() -> None:
    """Goal: the database is not in the way of an answer. Method: ten minutes without it for a worker; another worker
    that starts meanwhile does not serve, since it has no numbers."""

    async def story() -> None:
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

    run_virtually(story())


def test_not_found_needs_an_end_that_most_servers_of_the_log_confirm() -> None:
    """Goal: nobody is told that a transaction is not there which another worker notarised. Method: a worker's broker is
    cut off and shows the log as it was; the worker says that it does not know. Then it is back."""

    async def story() -> None:
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

    run_virtually(story())


def denies(answer: object) -> bool:
    return isinstance(answer, Refused) or (isinstance(answer, StateStatus) and answer.consumed_by is None)


def test_a_submission_after_a_ledger_offset_waits_for_the_database_alone() -> None:
    """Goal: only the database maps ledger offsets; nobody else waits. Method: it is away; a second submission names
    none; one names an offset above what is published."""

    async def story() -> None:
        async with World() as world:
            (worker,) = make(world.shared, Delivery())
            async with cluster(worker, world=world):
                await keep_asking(worker, 1, 3)
                await asyncio.sleep(2)
                after = SubmitOptions(deduplication_after=2)
                worker.database_is_away = True
                asking = asyncio.create_task(worker.submit(submission(7, [state(7)]), options=after))
                assert isinstance((await worker.submit(submission(8, [state(8)])))[0], Notarised)
                assert not asking.done()
                worker.database_is_away = False
                assert isinstance((await asking)[0], Notarised)
                (above,) = await worker.submit(submission(9, [state(9)]), options=SubmitOptions(deduplication_after=99))
                assert isinstance(above, NotNow)
                assert above.code == Code.OFFSET_AFTER_END.name

    run_virtually(story())


def test_a_completion_that_a_promoted_database_lacks_is_waited_for() -> None:
    """Goal: it does not count as a pruned one, for which every acceptance counts. Method: a standby without the newest
    completion is promoted while a submission waits for that one's log offset; the holder publishes it again."""

    async def story() -> None:
        async with World() as world:
            (worker,) = make(world.shared, Delivery())
            async with cluster(worker, world=world):
                await keep_asking(worker, 1, 3)
                await asyncio.sleep(2)
                worker.database_is_away = True
                after = SubmitOptions(deduplication_after=3)
                asking = asyncio.create_task(worker.submit(submission(7, [state(7)]), options=after))
                await asyncio.sleep(2)
                published = list(world.shared.database.completions)
                worker.database = copy(world.shared.database)
                worker.database.completions = published[:2]
                worker.database_is_away = False
                await asyncio.sleep(3)
                assert worker.worker.ledger_end == 2
                assert not asking.done()
                worker.database.completions = published
                (answer,) = await asking
                assert isinstance(answer, Notarised)
                (value,) = world.shared.topic.records(answer.log_offset, answer.log_offset + 1)
                record = decode_record(value[1], 2)
                assert isinstance(record, RequestRecord)
                assert record.after_offset == published[2][1].log_offset
                unbroken(worker)

    run_virtually(story())


def test_past_the_bounds_a_worker_refuses() -> None:
    """Goal: what waits for a barrier, numbers or the clock is bounded by the intake. Method: three places; a record
    that does not come back holds one, a clock that jumped the others."""

    async def story() -> None:
        async with World(core=CoreSettings(in_flight_max=3)) as world:
            (worker,) = make(world.shared, Delivery())
            async with cluster(worker, world=world):
                worker.clock.ahead_us = 3_600_000_000
                answers = await worker.submit(
                    *(submission(n, [state(n)], submission_id=f"s{n}", user_id=f"u{n}") for n in range(1, 6))
                )
                codes = [answer.code for answer in answers if isinstance(answer, NotNow)]
                assert codes == [Code.NOT_ACTIVE.name] * 3 + [Code.OVERLOADED.name] * 2

    run_virtually(story())
