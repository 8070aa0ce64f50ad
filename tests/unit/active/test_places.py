"""Receipts: where and when, said only where it is known, and never wrongly."""

from __future__ import annotations

import asyncio

from replica.active.places import Places
from replica.following.apply import Applier
from replica.index.memory import MemoryIndex
from replica.notary.answers import Notarised
from replica.notary.receipts import Place, verify_receipt
from tests.virtual_time import on_virtual_time
from tests.worlds.core_world import BEGUN, SIGNER, World, name_of, state, submission
from tests.worlds.notary_logs import TOPIC, LogMaker, begun, request_of


def _place(answer: object) -> Place | None:
    assert isinstance(answer, Notarised)
    assert verify_receipt(answer.receipt, SIGNER.public_key)
    if answer.receipt.place is not None:
        assert answer.receipt.place.log_offset == answer.log_offset
    return answer.receipt.place


@on_virtual_time
async def test_every_answer_of_a_transaction_names_its_first_acceptance() -> None:
    """Goal: one place for one transaction. Method: a success, its repeats by the index and by the log, a look-up."""
    async with World() as world:
        replica = await world.replica()
        await replica.until_active()
        await replica.submit(submission(7))
        (first,) = await replica.submit(submission(1, [state(9)]))
        place = _place(first)
        position = replica.participant.follower.position
        assert place is not None and position is not None
        assert (place.log_id, place.log_offset) == (position.topic_id, BEGUN + 2)
        assert place.epoch == replica.participant.epoch
        assert place.judged_us == position.stamp_us
        await asyncio.sleep(1)
        (again,) = await replica.submit(submission(1, [state(9)]))
        (other_command,) = await replica.submit(submission(1, [state(9)], command_id="other"))
        looked_up = await replica.link.look_up(name_of(1))
        assert isinstance(other_command, Notarised) and other_command.record_offset == BEGUN + 3
        assert [_place(answer) for answer in (again, other_command, looked_up)] == [place] * 3


@on_virtual_time
async def test_a_successor_says_what_its_predecessor_decided() -> None:
    """Goal: a fail-over changes neither epoch nor time of what was decided. Method: stop the active, and ask the
    next one."""
    async with World() as world:
        first = await world.replica(1)
        await first.until_active()
        second = await world.replica(2)
        (answer,) = await first.submit(submission(1, [state(9)]))
        place = _place(answer)
        assert place is not None
        await asyncio.sleep(1)
        await first.stop()
        await second.until_active()
        (new,) = await second.submit(submission(2))
        (again,) = await second.submit(submission(1, [state(9)]))
        assert _place(again) == place
        later = _place(new)
        assert later is not None and later.epoch > place.epoch
        assert _place(await second.link.look_up(name_of(1))) == place


def _places_of(maker: LogMaker, *ends: int) -> Places:
    """What is known of the log when it is read in runs that end there."""
    places, applier = Places(), Applier(MemoryIndex(), TOPIC)
    records = list(enumerate(maker.values))
    for begin, end in zip((0, *ends), (*ends, len(records)), strict=True):
        places.note(applier.apply(records[begin:end]))
    return places


def test_what_lies_before_a_barrier_of_the_same_run_has_no_known_epoch() -> None:
    """Goal: never the epoch of another barrier. Method: two activations, read in one run and in two."""
    maker = begun()
    for epoch in (3, 5):
        maker.barrier(epoch)
        maker.submit(request_of(epoch), stamp_us=1_000 * epoch)
    whole, halves = _places_of(maker), _places_of(maker, 5)
    assert (whole.of(4), halves.of(4)) == (None, Place(TOPIC, 4, 3, 3_000))
    assert whole.of(6) == halves.of(6) == Place(TOPIC, 6, 5, 5_000)


def test_only_first_notarisations_have_a_place() -> None:
    """Goal: a repeat or a refusal never says its own offset. Method: a success, a conflict, the success once more."""
    maker = begun()
    maker.submit(request_of(1, (1,)), stamp_us=5_000)
    maker.submit(request_of(2, (1,)), stamp_us=6_000)
    maker.submit(request_of(1, (1,)), stamp_us=7_000, command="other")
    maker.submit(request_of(3), stamp_us=4_000)  # a clock behind: judged at the highest stamp so far
    places = _places_of(maker)
    assert [places.of(offset) for offset in (1, 4, 5, 7, None)] == [None] * 5
    assert (places.of(3), places.of(6)) == (Place(TOPIC, 3, 1, 5_000), Place(TOPIC, 6, 1, 7_000))


def test_the_memory_is_bounded_and_forgets_the_oldest() -> None:
    """Goal: a bound. Method: room for two, three notarisations; the forgotten one has no place."""
    maker = begun()
    for number in range(3):
        maker.submit(request_of(number))
    places, applier = Places(places_max=2), Applier(MemoryIndex(), TOPIC)
    places.note(applier.apply(list(enumerate(maker.values))))
    assert [places.of(offset) is not None for offset in (3, 4, 5)] == [False, True, True]
