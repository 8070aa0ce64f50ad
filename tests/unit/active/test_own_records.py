"""What was read back meets who waits for it: nobody is answered by the record of another."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from replica.notary.codes import Code
from replica.notary.errors import InvariantBroken
from tests.virtual_time import on_virtual_time
from tests.worlds.core_world import World, state, submission


@pytest.mark.parametrize("unreadable", [False, True])
@on_virtual_time
async def test_a_numbering_mistake_ends_the_process_instead_of_answering_wrongly(unreadable: bool) -> None:
    """Goal: an answer goes to who sent the transaction. Method: between append and read-back, two that wait change
    places; with requests that no reader can read as well. Nobody is answered by the other's record."""
    async with World() as world:
        replica = await world.replica()
        await replica.until_active()
        batch = [submission(1, [state(9)]), submission(2, [state(9)])]
        if unreadable:
            batch = [msgspec.structs.replace(one, request=b"NOTARY" + one.request[6:]) for one in batch]
        asking = asyncio.create_task(replica.submit(*batch))
        sent = replica.server.appender.own.sent
        while len(sent) < 2:
            await asyncio.sleep(0)
        (first, one), (second, other) = sent.items()
        sent[first], sent[second] = other, one
        with pytest.raises(InvariantBroken, match="numbers were given twice"):
            async with asyncio.timeout(5):
                await replica.participant.broken
        await replica.stop()
        answers = await asking
        assert [getattr(answer, "code", None) for answer in answers] == [Code.OUTCOME_UNKNOWN.name] * 2
