"""What was read back meets who waits for it: nobody is answered by the record of another."""

from __future__ import annotations

import asyncio
from typing import cast

import msgspec
import pytest

from replica.active.read_back import match
from replica.active.waiting import Waiting
from replica.following.apply import Applied, judge_records
from replica.index.memory import MemoryIndex
from replica.link.interface import DEFAULT_OPTIONS, Replies
from replica.notary.canonical import summarise
from replica.notary.errors import Code, InvariantBroken
from replica.notary.position import begin
from replica.notary.records import BarrierRecord, RequestRecord, encode_record
from replica.notary.requests import Submission
from replica.store.interface import Command
from tests.simulation.virtual import run_virtually
from tests.worlds.core_world import World, state, submission


@pytest.mark.parametrize("unreadable", [False, True])
def test_a_numbering_mistake_ends_the_process_instead_of_answering_wrongly(unreadable: bool) -> None:
    """Goal: an answer goes to who sent the transaction. Method: between append and read-back, two that wait change
    places; with requests that no reader can read as well. Nobody is answered by the other's record."""

    async def story() -> None:
        async with World() as world:
            replica = await world.replica()
            await replica.until_active()
            batch = [submission(1, [state(9)]), submission(2, [state(9)])]
            if unreadable:
                batch = [msgspec.structs.replace(one, request=b"NOTARY" + one.request[6:]) for one in batch]
            asking = asyncio.create_task(replica.submit(*batch))
            activation = replica.participant.activation
            assert activation is not None
            waiting = activation.appender.waiting
            while len(waiting) < 2:
                await asyncio.sleep(0)
            (first, one), (second, other) = waiting.items()
            waiting[first], waiting[second] = other, one
            with pytest.raises(InvariantBroken, match="another submission"):
                async with asyncio.timeout(5):
                    await replica.participant.broken
            await replica.stop()
            answers = await asking
            assert [getattr(answer, "code", None) for answer in answers] == [Code.OUTCOME_UNKNOWN.name] * 2

    run_virtually(story())


@pytest.mark.parametrize(
    "other", [submission(1, [state(8)]), submission(2, [state(9)])], ids=["content", "transaction"]
)
def test_who_waits_for_another_number_keeps_waiting(other: Submission) -> None:
    """Goal: neither the same id with other content nor another id is taken for the one that was sent; nobody's
    place is lost. Method: of three records the second one is another than its number waits for; another activation."""
    sent = [submission(3, [state(7)]), submission(1, [state(9)]), submission(4, [state(6)])]
    waiting = {number: _waiting(one) for number, one in enumerate(sent)}
    logged = _applied([sent[0], other, sent[2]])
    with pytest.raises(InvariantBroken, match="another submission"):
        match(logged, ACTIVATION, waiting)
    assert sorted(waiting) == [0, 1, 2]
    assert match(logged, bytes(16), waiting) == []
    answered = match(_applied(sent), ACTIVATION, waiting)
    assert [one.submission for one, _, _ in answered] == sent
    assert not waiting


ACTIVATION = b"a" * 16


def _waiting(one: Submission) -> Waiting:
    tx_id, digest, states = summarise(one.request)
    command = Command(b"change", one.user_id, one.command_id, one.act_as, one.submission_id, tx_id, digest, 1)
    return Waiting(cast(Replies, None), 1, one, command, states, DEFAULT_OPTIONS)


def _applied(logged: list[Submission]) -> Applied:
    """A run that begins with our barrier, read and judged."""
    barrier = BarrierRecord(1, ACTIVATION, "R1", "memory:memory:1", 2, 2)
    records = [RequestRecord(2, ACTIVATION, number, 1, one, 0, -1) for number, one in enumerate(logged)]
    values = [encode_record(record) for record in (barrier, *records)]
    applied, _ = judge_records(MemoryIndex(), begin("topic"), list(enumerate(values)))
    return applied
