"""What officers sign about parties: verified, logged, read back, and listed, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace

from replica.active.noting import NOTE_MAX_S, Noted, NoteRefused, NoteUnknown
from replica.active.signer import FileSigner
from replica.notary.codes import Code
from replica.notary.errors import IndexMismatch, NotActive
from replica.notary.note_signatures import signed_note
from replica.notary.parties import OFFICERS, encode_officers
from replica.notary.records import ActRecord, RegistrationRecord
from replica.operators.party_book import PAGE_KEYS, PartyBook, near_each_other
from tests.simulation.virtual import run_virtually
from tests.worlds.beginning import LEDGER, OTHER_LEDGER
from tests.worlds.core_world import PARTY, Replica, World

ANNA, BEN = [FileSigner(Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32)) for number in (1, 2)]
NOWHERE = (2, bytes(16), 0, 0)
END = 10**15


def officers(*who: FileSigner, by: FileSigner = ANNA, replaces: int = 1) -> ActRecord:
    body = encode_officers(one.public_key for one in who)
    act = ActRecord(*NOWHERE, OFFICERS, replaces, body, "anna", "a reason", by.public_key, bytes(64))
    return signed_note(act, LEDGER, by.sign)


def registration(
    number: int = 1,
    period_us: tuple[int, int] = (0, END),
    by: FileSigner = ANNA,
    party: str = PARTY,
    before: int = 0,
    ledger_id: bytes = LEDGER,
) -> RegistrationRecord:
    key = number.to_bytes(32, "big")
    record = RegistrationRecord(*NOWHERE, party, key, before, *period_us, "anna", by.public_key, bytes(64))
    return signed_note(record, ledger_id, by.sign)


def play(story: Callable[[World, Replica], Awaitable[None]]) -> None:
    async def scenario() -> None:
        async with World() as world:
            replica = await world.replica()
            await replica.until_active()
            await story(world, replica)

    run_virtually(scenario())


async def refusal(replica: Replica, *notes: ActRecord | RegistrationRecord) -> NoteRefused:
    with pytest.raises(NoteRefused) as caught:
        await replica.participant.note(notes)
    return caught.value


def test_officers_register_keys_which_every_replica_then_knows() -> None:
    """Goal: what was signed is in the log once, with its effect, and listed by passives too. Method: officers, two
    keys, one of which is revoked; the list of both replicas."""

    async def story(world: World, replica: Replica) -> None:
        passive = await world.replica(2)
        (first,) = await replica.participant.note([officers(ANNA, BEN)])
        assert first.effective
        noted = await replica.participant.note([registration(1), registration(2)])
        assert noted == [Noted(first.offset + 1, True), Noted(first.offset + 2, True)]
        (revoked,) = await replica.participant.note([registration(1, (5, 5), by=BEN, before=1)])
        await asyncio.sleep(1)
        for one in (replica, passive):
            page = await PartyBook(one.index, one.log).page()
            assert page.officers == sorted([ANNA.public_key.hex(), BEN.public_key.hex()])
            assert page.acts == 2 and not page.more
            assert [(key.offset, key.from_us, key.until_us, key.officer, key.number) for key in page.keys[1:]] == [
                (noted[1].offset, 0, END, ANNA.public_key.hex(), 1),
                (revoked.offset, 5, 5, BEN.public_key.hex(), 2),
            ]
            assert {key.party for key in page.keys} == {PARTY}
        with pytest.raises(NotActive):
            await passive.participant.note([registration(3)])

    play(story)


def test_what_would_have_no_effect_is_not_logged() -> None:
    """Goal: a refusal says why, and the log has nothing of it. Method: each reason alone."""

    async def story(world: World, replica: Replica) -> None:
        end = world.shared.topic.end_offset
        assert "no officer's key" in (await refusal(replica, registration(by=BEN))).detail
        assert "no officer's key" in (await refusal(replica, officers(BEN, by=BEN))).detail
        assert "follows on 2" in (await refusal(replica, officers(ANNA, replaces=2))).detail
        assert world.shared.topic.end_offset == end
        await replica.participant.note([registration()])
        end = world.shared.topic.end_offset
        assert "follows on 0" in (await refusal(replica, officers(ANNA, BEN, replaces=0))).detail
        assert "no officer's key" in (await refusal(replica, registration(2, by=BEN))).detail
        assert (
            "follows on 0 registrations of this key, and the log has 1"
            in (await refusal(replica, registration())).detail
        )
        forged = replace(registration(3), until_us=7)
        assert (await refusal(replica, registration(2), forged)).code is Code.SIGNATURE_INVALID
        foreign = registration(3, ledger_id=OTHER_LEDGER)
        assert (await refusal(replica, registration(2), foreign)).code is Code.SIGNATURE_INVALID
        no_list = signed_note(replace(officers(ANNA, replaces=1), body=b"x"), LEDGER, ANNA.sign)
        assert "no list of officers" in (await refusal(replica, no_list)).detail
        await asyncio.sleep(1)
        assert world.shared.topic.end_offset == end

    play(story)


def test_of_two_at_once_the_later_one_is_refused() -> None:
    """Goal: nobody believes to have set what another one has set, and no honest note lies in the log without effect,
    for the audit to find each time. Method: two lists that follow on the same one; an officer registers while she is
    replaced; one call that names new officers and registers by a removed one, or has a registration twice."""

    async def story(world: World, replica: Replica) -> None:
        note = replica.participant.note
        await note([officers(ANNA, BEN)])
        end = world.shared.topic.end_offset
        first, second = await asyncio.gather(
            note([officers(ANNA, BEN, replaces=2)]), refusal(replica, officers(BEN, by=BEN, replaces=2))
        )
        assert (first[0].effective, "follows on 2" in second.detail) == (True, True)
        first, second = await asyncio.gather(note([officers(BEN, replaces=3)]), refusal(replica, registration(3)))
        assert (first[0].effective, "no officer's key" in second.detail) == (True, True)
        removed = await refusal(replica, officers(ANNA, by=BEN, replaces=4), registration(4, by=BEN))
        assert (removed.code, "comes alone" in removed.detail) == (Code.NOT_POSSIBLE_NOW, True)
        twice = registration(4, by=BEN)
        assert "registered twice" in (await refusal(replica, twice, twice)).detail
        await asyncio.sleep(1)
        assert world.shared.topic.end_offset == end + 2

    play(story)


def test_whoever_waits_is_told_when_the_outcome_stays_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: no call hangs, none claims what it does not know, and a lost note is in nobody's way. Method: records that
    are lost, then a lost lock; the same of the next activation, which nothing else ends."""

    async def story(world: World, replica: Replica) -> None:
        def lose_records() -> None:
            assert replica.participant.activation is not None
            monkeypatch.setattr(replica.participant.activation.holder.writer, "append", lambda _: None)

        lose_records()
        waiting = asyncio.create_task(replica.participant.note([officers(ANNA)]))
        await asyncio.sleep(0.1)
        world.shared.lock_server.end_all()
        with pytest.raises(NoteUnknown, match="stepped down"):
            await waiting
        await replica.until_active()
        lose_records()
        began_s = world.shared.clock.boottime_s()
        with pytest.raises(NoteUnknown, match="stepped down"):
            await replica.participant.note([officers(ANNA)])
        assert world.shared.clock.boottime_s() - began_s < world.shared.core.log_stall_max_s + 1 < NOTE_MAX_S
        await replica.until_active()
        assert await replica.participant.note([officers(ANNA)]) != []

    play(story)


def test_a_list_is_read_page_by_page_and_believes_the_log() -> None:
    """Goal: a long list takes bounded calls. Method: more keys than a page; records between them; another log."""

    async def story(world: World, replica: Replica) -> None:
        count = PAGE_KEYS + 6  # beside that of the world itself
        for start in range(0, count, 100):
            numbers = range(start, min(count, start + 100))
            await replica.participant.note([registration(number + 1, party=f"CN={number}") for number in numbers])
        book = PartyBook(replica.index, replica.log)
        first = await book.page()
        rest = await book.page(first.keys[-1].offset)
        assert (len(first.keys), first.more, len(rest.keys), rest.more) == (PAGE_KEYS, True, 7, False)
        assert [key.party for key in (*first.keys, *rest.keys)] == [PARTY, *[f"CN={number}" for number in range(count)]]
        at = first.keys[3].offset
        world.shared.topic._records[at] = world.shared.topic._records[0]
        with pytest.raises(IndexMismatch, match=f"log offset {at}"):
            await book.page()

    play(story)


def test_readers_pass_over_small_gaps_only() -> None:
    """Goal: few readers for what was imported at once. Method: offsets with gaps of both kinds."""
    assert near_each_other([]) == []
    assert near_each_other([1, 2, 1_001, 2_001, 2_002]) == [[1, 2, 1_001], [2_001, 2_002]]
