"""A replica whose site may not serve, on virtual time: nothing is answered as decided, and nobody leads."""

from __future__ import annotations

import asyncio

import pytest

from ha.ending import Cause
from ha.errors import SiteTakenOver
from replica.active.noting import NoteUnknown
from replica.active.receipt_signer import Contents, Places, ReceiptSigner, Then
from replica.log.memory import Delivery, MemoryTopic
from replica.notary.answers import Notarised, NotNow, Refused
from replica.notary.codes import Code
from tests.unit.active.test_noting import ANNA, officers
from tests.virtual_time import on_virtual_time
from tests.worlds.core_world import Replica, World, name_of, state, submission


@pytest.mark.parametrize("all_serve", [False, True])
@on_virtual_time
async def test_a_site_that_was_taken_over_answers_nothing(all_serve: bool) -> None:
    """Goal: from the moment that the term ends, nothing is served. Method: submissions and look-ups before it ends,
    after it, once the replica has heeded it, for a while longer; then the site has a term again."""
    async with World(all_serve=all_serve) as world:
        replica = await world.replica()
        await replica.until_active()
        (before,) = await replica.submit(submission(1, [state(9)]))
        assert isinstance(before, Notarised)
        replica.site_in_term = False
        await refuses(replica)
        replica.participant.note_site(SiteTakenOver("term 2 of site b"))
        for _ in range(60):
            await asyncio.sleep(1.0)
            await refuses(replica)
        assert replica.participant.activation is None
        assert replica.participant.counters.step_downs[Cause.SITE] == 1
        replica.site_in_term = True
        replica.participant.note_site(None)
        await replica.until_active()
        (after,) = await replica.submit(submission(2, [state(8)]))
        assert isinstance(after, Notarised)


async def refuses(replica: Replica) -> None:
    """It says that it does not serve, and answers accordingly."""
    assert not replica.participant.standing().active
    (answer,) = await replica.submit(submission(3, [state(7)]))
    assert isinstance(answer, NotNow)
    assert isinstance(await replica.link.look_up(name_of(1)), NotNow)


class Held(Delivery):
    """Keeps what is appended until it is let go."""

    kept: list[tuple[bytes, MemoryTopic]] | None = None

    def send(self, value: bytes, topic: MemoryTopic, give_up: object) -> None:
        if Held.kept is None:
            topic.store(value)
        else:
            Held.kept.append((value, topic))


@on_virtual_time
async def test_what_is_on_its_way_is_not_answered_as_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: neither a receipt nor a rejection comes after the term. Method: the log keeps two records, one of them a
    double spend, until the term is over."""
    monkeypatch.setattr(Held, "kept", None)
    async with World() as world:
        replica = await world.replica(delivery=Held)
        await replica.until_active()
        await replica.submit(submission(1, [state(9)]))
        monkeypatch.setattr(Held, "kept", [])
        asked = asyncio.create_task(replica.submit(submission(2, [state(8)]), submission(3, [state(9)])))
        await asyncio.sleep(0.2)
        kept, Held.kept = Held.kept, None
        assert kept
        replica.site_in_term = False
        for value, topic in kept:
            topic.store(value)
        answers = await asked
        assert not any(isinstance(answer, Notarised | Refused) for answer in answers)
        assert {answer.code for answer in answers if isinstance(answer, NotNow)} == {Code.OUTCOME_UNKNOWN.name}


@on_virtual_time
async def test_what_was_decided_while_the_key_signed_is_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a rejection stops with the term as a receipt does. Method: the term ends while the key signs for the other
    transaction of the batch."""
    async with World() as world:
        replica = await world.replica()
        await replica.until_active()
        await replica.submit(submission(1, [state(9)]))

        def too_late(self: ReceiptSigner, contents: Contents, then: Then, places: Places = ()) -> None:
            replica.site_in_term = False
            then(None)

        monkeypatch.setattr(ReceiptSigner, "make", too_late)
        answers = await replica.submit(submission(2, [state(8)]), submission(3, [state(9)]))
        assert {answer.code for answer in answers if isinstance(answer, NotNow)} == {Code.OUTCOME_UNKNOWN.name}
        assert len(answers) == 2 and not any(isinstance(answer, Refused) for answer in answers)


@on_virtual_time
async def test_what_officers_signed_is_not_confirmed_too_late() -> None:
    """Goal: an officer hears that it is unknown whether the serving site has the note. Method: the term ends while the
    log has the note on its way."""
    async with World() as world:
        replica = await world.replica()
        await replica.until_active()
        asked = asyncio.create_task(replica.participant.note([officers(ANNA)]))
        await asyncio.sleep(0)
        replica.site_in_term = False
        with pytest.raises(NoteUnknown, match="another site"):
            await asked
