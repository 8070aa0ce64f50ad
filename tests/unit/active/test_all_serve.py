"""Whole replicas that all serve (`serving = "all"`), on virtual time: each has a worker, and they take turns in holding
the lock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import replica.active.activation
from replica.active.fitness import Unfit
from replica.active.numbers import is_paused, writable
from replica.active.publisher import Publisher
from replica.notary.answers import Answer, Notarised, NotNow, Refused
from replica.notary.codes import Code
from replica.notary.errors import SignerUnavailable
from replica.notary.granters import Database, Release
from replica.notary.records import BarrierRecord, encode_record
from tests.unit.active.test_worker import Late
from tests.virtual_time import on_virtual_time
from tests.worlds.core_world import Replica, World, name_of, state, submission


@asynccontextmanager
async def serving(world: World, count: int = 3) -> AsyncIterator[list[Replica]]:
    """Replicas that all serve."""
    replicas = [await world.replica(n, delivery=lambda n=n: Late(f"{n}")) for n in range(1, count + 1)]  # type: ignore[misc]
    for replica_ in replicas:
        await replica_.until_active()
    yield replicas
    for replica_ in replicas:
        assert not replica_.participant.broken.done()


def holder_of(replicas: list[Replica]) -> Replica:
    (holder,) = [each for each in replicas if each.election.is_leading()]
    return holder


async def keep_asking(replica_: Replica, first: int, count: int, pause_s: float = 0.0) -> list[Answer]:
    answers: list[Answer] = []
    for tx in range(first, first + count):
        answers += await replica_.submit(submission(tx, [state(tx)], submission_id=f"s{tx}"))
        await asyncio.sleep(pause_s)
    return answers


def failed(answers: list[Answer]) -> list[Answer]:
    return [answer for answer in answers if not isinstance(answer, Notarised)]


def all_serve(seed: int = 1) -> World:
    return World(all_serve=True, seed=seed)


@pytest.mark.parametrize("seed", range(3))
@on_virtual_time
async def test_clients_of_any_replica_do_not_notice_a_change_of_holder(seed: int) -> None:
    """Goal: a lost lock costs no request, the holder's own clients included; completions are published once and in
    order. Method: three replicas; all lock sessions end four times while clients ask everywhere."""
    async with all_serve(seed=seed) as world, serving(world) as replicas:
        asking = [asyncio.create_task(keep_asking(each, 1_000 * at, 200, 0.02)) for at, each in enumerate(replicas, 1)]
        epoch = holder_of(replicas).participant.epoch
        for _ in range(4):
            await asyncio.sleep(1.0)
            world.shared.lock_server.end_all()
        answers = [answer for found in await asyncio.gather(*asking) for answer in found]
        await asyncio.sleep(10)
        assert failed(answers) == []
        assert holder_of(replicas).participant.epoch >= epoch + 3
        completions = [completion.submission_id for _, completion in world.shared.database.completions]
        assert sorted(completions) == sorted(f"s{1_000 * at + n}" for at in (1, 2, 3) for n in range(200))
        standings = [each.participant.standing() for each in replicas]
        assert {(standing.ledger_end, standing.all_serve) for standing in standings} == {(600, True)}


@on_virtual_time
async def test_a_replica_that_stops_answers_its_own_and_the_others_serve_on() -> None:
    """Goal: a stop in order leaves nobody with an unknown outcome. Method: the holder stops with submissions on their
    way; the others' clients go on meanwhile; what the holder refuses is not in the log."""
    async with all_serve() as world, serving(world) as replicas:
        holder = holder_of(replicas)
        others = [each for each in replicas if each is not holder]
        asking = [asyncio.create_task(keep_asking(each, 1_000 * at, 100)) for at, each in enumerate(others, 1)]
        last = [asyncio.create_task(holder.submit(submission(n, [state(n)], submission_id=f"s{n}"))) for n in range(9)]
        await asyncio.sleep(0.005)
        await holder.stop()
        told = [answer for found in await asyncio.gather(*last) for answer in found]
        assert all(
            isinstance(answer, Notarised) or (isinstance(answer, NotNow) and answer.code == Code.NOT_ACTIVE.name)
            for answer in told
        )
        (refused,) = await holder.submit(submission(77, [state(77)]))
        assert isinstance(refused, NotNow)
        answers = [answer for found in await asyncio.gather(*asking) for answer in found]
        assert failed(answers) == []
        await asyncio.sleep(5)
        published = {completion.submission_id for _, completion in world.shared.database.completions}
        answered = {f"s{n}" for n, answer in enumerate(told) if isinstance(answer, Notarised)}
        assert published == answered | {f"s{1_000 * at + n}" for at in (1, 2) for n in range(100)}


@on_virtual_time
async def test_who_may_not_lead_serves_and_leaves_the_lock_to_others() -> None:
    """Goal: workers can be more than candidates. Method: three serve, one may lead; its lock ends; then it stops, and
    nobody takes the lock for a minute, while the others' clients are answered."""
    async with all_serve() as world, serving(world) as replicas:
        holder = holder_of(replicas)
        others = [each for each in replicas if each is not holder]
        for each in others:
            each.participant.may_lead = False
        for n in range(5):
            world.shared.lock_server.end_all()
            await asyncio.sleep(3.0)
            assert holder_of(replicas) is holder, n
        await holder.stop()
        await asyncio.sleep(60.0)
        assert not any(each.election.is_leading() for each in others)
        asking = [keep_asking(each, 1_000 * at, 20) for at, each in enumerate(others, 1)]
        assert failed([answer for found in await asyncio.gather(*asking) for answer in found]) == []
        others[1].participant.may_lead = True
        await asyncio.sleep(10.0)
        assert holder_of(others) is others[1]


@on_virtual_time
async def test_what_comes_between_a_release_and_the_next_claim_is_held() -> None:
    """Goal: a lease that changes hands refuses nobody, and what waited is logged with the claim, not later. Method: a
    release, as a holder writes it; submissions and a look-up at each replica; then the next activation."""
    async with all_serve() as world, serving(world) as replicas:
        assert failed(await keep_asking(replicas[0], 99, 1)) == []
        epoch = holder_of(replicas).participant.epoch
        for each in replicas:
            each.participant.may_lead = False
        store = world.shared.topic.store
        store(encode_record(BarrierRecord(epoch + 50, b"r" * 16, "", Release("R1"), 2, 3)))
        await asyncio.sleep(0.01)
        assert {writable(each.participant.follower.position) for each in replicas} == {None}
        asking = [asyncio.create_task(keep_asking(each, 10 * at, 1)) for at, each in enumerate(replicas, 1)]
        assert isinstance(await replicas[1].link.look_up(name_of(99)), Notarised)
        await asyncio.sleep(0.15)
        assert [task.done() for task in asking] == [False] * 3
        assert [len(each.server.appender.held) for each in replicas] == [1, 1, 1]
        ours = world.shared.lock_server.identity
        database = Database(ours.kind, ours.system_identifier, ours.timeline)
        store(encode_record(BarrierRecord(epoch + 51, b"c" * 16, "R9", database, 2, 3)))
        for each in replicas:
            await each.participant.follower.wait_for(lambda position: writable(position) is not None)
            assert not each.server.appender.held
        assert failed([answer for found in await asyncio.gather(*asking) for answer in found]) == []


@pytest.mark.parametrize("dies", [False, True])
@on_virtual_time
async def test_service_is_paused_by_a_barrier_and_resumed(dies: bool) -> None:
    """Goal: after the barrier nobody's record counts, whoever wrote it, until the pause is over; applications are told
    so; what was logged before is published. Method: the note in the database, and replicas that are told of it; or the
    holder loses its lock before it is told, and whoever takes the lock finds the note. Changes of holder meanwhile."""
    async with all_serve() as world, serving(world) as replicas:
        stopping = asyncio.Event()

        async def tell_all() -> None:
            while not stopping.is_set():
                await asyncio.sleep(1.0)
                for each in replicas:
                    each.participant.note_pause(world.shared.database.service_paused)

        asking = [asyncio.create_task(keep_asking(each, 1_000 * at, 100, 0.01)) for at, each in enumerate(replicas)]
        world.shared.database.service_paused = True
        if dies:
            world.shared.lock_server.end_all()
        else:
            telling = asyncio.create_task(tell_all())
        await asyncio.gather(*(each.participant.follower.wait_for(is_paused) for each in replicas))
        await asyncio.sleep(1.0)
        answers = [answer for found in await asyncio.gather(*asking) for answer in found]
        assert {answer.code for answer in failed(answers)} <= {Code.SERVICE_PAUSED.name, Code.NOT_ACTIVE.name}
        count = len(answers) - len(failed(answers))
        assert {each.participant.serving.unfit[0] for each in replicas} == {Unfit.PAUSED}
        if dies:
            telling = asyncio.create_task(tell_all())
        for at in range(3):  # whoever takes the lock meanwhile keeps it paused
            world.shared.lock_server.end_all()
            await asyncio.sleep(4.0)
            assert not holder_of(replicas).participant.activation.serving
            refused = [*await replicas[at].submit(submission(at)), await replicas[at].link.look_up(name_of(1))]
            assert [answer.code for answer in refused] == [Code.SERVICE_PAUSED.name] * 2
        assert len(world.shared.database.completions) == count
        world.shared.database.service_paused = False
        for each in replicas:
            await each.until_active()
            assert failed(await keep_asking(each, 50_000 + int(each.name[1:]), 1)) == []
        stopping.set()
        await telling


@on_virtual_time
async def test_look_ups_are_answered_by_whoever_is_asked() -> None:
    """Goal: no replica denies what another notarised. Method: notarised at one, asked at all at once; then a missing
    one; then while nobody holds the lock."""
    async with all_serve() as world, serving(world) as replicas:
        for number, each in enumerate(replicas, 1):
            assert failed(await keep_asking(each, number, 1)) == []
            found = await asyncio.gather(*(asked.link.look_up(name_of(number)) for asked in replicas))
            assert failed(list(found)) == []
            missing = await each.link.look_up(name_of(99))
            assert isinstance(missing, Refused)
            assert missing.code == Code.TX_NOT_FOUND.name
        world.shared.lock_server.end_all()
        assert isinstance(await replicas[2].link.look_up(name_of(1)), Notarised)


@on_virtual_time
async def test_a_key_that_fails_ends_service_and_not_the_hold_of_the_lock() -> None:
    """Goal: a holder without a key publishes, and does not serve. Method: its key fails, and works again."""
    async with all_serve() as world, serving(world) as replicas:
        holder = holder_of(replicas)
        activation, worker = holder.participant.activation, holder.participant.serving
        gone: list[str] = []

        async def check() -> None:
            if gone:
                raise SignerUnavailable(gone[0])

        holder.participant._receipt_signer.check = check  # type: ignore[method-assign]
        gone.append("the token is gone")
        holder.participant._on_unsigned("the token is gone", Code.SIGNER_UNAVAILABLE)
        await asyncio.sleep(1)
        assert not holder.participant.standing().active
        assert worker.unfit == (Unfit.SIGNER, "the notary's key cannot be used")
        assert holder.election.is_leading()
        assert holder.participant.activation is activation
        other = next(each for each in replicas if each is not holder)
        assert failed(await keep_asking(other, 1, 3)) == []
        await asyncio.sleep(5)
        assert len(world.shared.database.completions) == 3
        assert not holder.participant.standing().active
        gone.clear()
        await holder.until_active()
        assert failed(await keep_asking(holder, 10, 3)) == []


@on_virtual_time
async def test_a_holder_that_cannot_publish_reads_no_further_and_the_others_serve(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: completions of others' records do not fill the holder's memory. Method: its publisher is full for three
    seconds; then for good, until it loses the lock."""
    async with all_serve() as world, serving(world) as replicas:
        full: list[Publisher] = []
        monkeypatch.setattr(Publisher, "is_full", property(lambda self: self in full))
        holder = holder_of(replicas)
        other = next(each for each in replicas if each is not holder)
        full.append(holder.participant.activation.publisher)
        await keep_asking(other, 1, 2)
        stuck_at = holder.participant.follower.applied_offset
        assert failed(await keep_asking(other, 10, 20, 0.1)) == []
        assert holder.participant.follower.applied_offset <= stuck_at + 1
        full.clear()
        await asyncio.sleep(1)
        assert holder.participant.follower.applied_offset >= stuck_at + 20
        assert holder.election.is_leading()
        full.append(holder.participant.activation.publisher)
        await keep_asking(other, 40, 2)
        world.shared.lock_server.end_all()
        await asyncio.sleep(10)
        assert failed(await keep_asking(holder, 60, 2)) == []
        await asyncio.sleep(1)
        assert len(world.shared.database.completions) == 26


@on_virtual_time
async def test_holes_in_the_numbers_end_with_a_new_activation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: positions stay small. Method: the bound is set to what three workers have anyway, for a moment."""
    async with all_serve() as world, serving(world) as replicas:
        await asyncio.gather(*(keep_asking(each, 10 * at, 2) for at, each in enumerate(replicas)))
        epoch = holder_of(replicas).participant.epoch
        monkeypatch.setattr(replica.active.activation, "is_fragmented", lambda position: len(position.seen) > 2)
        assert failed(await keep_asking(replicas[0], 100, 1)) == []
        await asyncio.sleep(0.1)
        monkeypatch.setattr(replica.active.activation, "is_fragmented", lambda _: False)
        assert failed(await keep_asking(replicas[0], 110, 20, 0.5)) == []
        holder = holder_of(replicas)
        assert holder.participant.epoch == epoch + 1
        assert "fragmented" in world.shared.database.ended[epoch]
        assert len(holder.participant.follower.position.seen) == 1


@on_virtual_time
async def test_numbers_are_drawn_once_for_each_start() -> None:
    """Goal: a change of holder needs no draw. Method: count them after three changes."""
    async with all_serve() as world, serving(world) as replicas:
        for _ in range(3):
            world.shared.lock_server.end_all()
            await asyncio.sleep(8)
        assert world.shared.database.drawn == 3
        assert holder_of(replicas).participant.epoch >= 4
