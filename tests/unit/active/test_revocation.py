"""A party's key is revoked while requests of that party are on their way: one offset decides for every replica.

Whole replicas on virtual time, records late and out of order. What replicas answered and published is held against the
reference judge, which reads the log by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from random import Random

import pytest

from ha.errors import HaError
from replica.checker.judge import JudgedRequest, ReferenceJudge
from replica.index.interface import OFFSET_END
from replica.notary.answers import Answer, Notarised, NotNow, Refused
from replica.notary.codes import Code
from replica.notary.errors import NotaryError
from replica.notary.note_signatures import signed_note
from replica.notary.parties import decode_registration, registration_id
from replica.notary.receipts import verify_receipt
from replica.notary.records import RegistrationRecord
from tests.unit.active.test_noting import ANNA, NOWHERE
from tests.unit.active.test_worker import Late
from tests.virtual_time import on_virtual_time
from tests.worlds.beginning import LEDGER
from tests.worlds.core_world import KEY, PARTY, SIGNER, Replica, World, name_of, state, submission, until_led

REQUESTS, SPREAD_S = 200, 0.4
SETTLED_S = 10.0  # virtual: until all that was answered is published


def registration(from_us: int, until_us: int) -> RegistrationRecord:
    record = RegistrationRecord(*NOWHERE, PARTY, KEY, 1, from_us, until_us, "anna", ANNA.public_key, bytes(64))
    return signed_note(record, LEDGER, ANNA.sign)


def newest_registration(replica: Replica) -> tuple[int, bool]:
    """The log offset of the newest registration of the key that a replica knows, and whether it revokes the key."""
    (value,) = replica.index.newest([registration_id(PARTY, KEY)], [OFFSET_END])
    assert value is not None
    found = decode_registration(value)
    return found.offset, found.from_us == found.until_us


async def with_an_officer(world: World, seed: str) -> list[Replica]:
    """Three replicas, one of them active, whose records come late; ANNA may register keys."""
    replicas = [await world.replica(n, delivery=lambda n=n: Late(f"{seed}/{n}")) for n in (1, 2, 3)]  # type: ignore[misc]
    await until_led(replicas)
    return replicas


async def ask(replica: Replica, tx: int) -> Answer:
    (answer,) = await replica.submit(submission(tx, [state(tx)], submission_id=f"s{tx}"))
    return answer


async def until_told(replica: Replica, tx: int) -> Answer:
    """As an application does: the same request again while nothing is known of it."""
    while isinstance(answer := await ask(replica, tx), NotNow):
        await asyncio.sleep(0.05)
    return answer


async def revoke(replicas: Sequence[Replica]) -> None:
    """Have whoever leads note it, until it is in the log; an officer does no more when an outcome is unknown."""
    signed = registration(7, 7)
    while not newest_registration(replicas[0])[1]:
        for each in replicas:
            if each.election.is_leading():
                with suppress(NotaryError, HaError):
                    await each.participant.note([signed])
        await asyncio.sleep(0.01)


def judged(world: World) -> list[JudgedRequest]:
    """Each request that counts, by the reference judge."""
    log = world.shared.topic.records(0, world.shared.topic.end_offset)
    return [one for one in ReferenceJudge().judge(log) if isinstance(one, JudgedRequest)]


@pytest.mark.parametrize("fails_over", [False, True], ids=["", "while the holder changes"])
@pytest.mark.parametrize("all_serve", [False, True], ids=["one serves", "all serve"])
@pytest.mark.parametrize("seed", range(2))
@on_virtual_time
async def test_what_is_before_a_revocation_is_accepted_and_nothing_after_it(
    seed: int, all_serve: bool, fails_over: bool
) -> None:
    """Goal: no acceptance after the revocation's offset, none lost before it, one answer for ever. Method: requests
    at all replicas while the key is revoked, and the holder of the lock changes; all again elsewhere, after another
    change; answers, receipts and completions against the reference judge."""
    random = Random(f"{seed}/revocation")
    async with World(all_serve=all_serve, seed=seed) as world:
        replicas = await with_an_officer(world, f"{seed}")
        answers: dict[int, Answer] = {}

        async def ask_somewhere(tx: int) -> None:
            await asyncio.sleep(random.triangular(0, SPREAD_S))  # most when the key is revoked
            answers[tx] = await ask(random.choice(replicas) if all_serve else first(replicas), tx)

        async def revoke_in_between() -> None:
            await asyncio.sleep(SPREAD_S / 2)
            await revoke(replicas)

        async def change_holder() -> None:
            await asyncio.sleep(SPREAD_S / 2 + random.uniform(-0.02, 0.02))
            world.shared.lock_server.end_all()

        asking = [ask_somewhere(tx) for tx in range(1, REQUESTS + 1)]
        await asyncio.gather(revoke_in_between(), *asking, *([change_holder()] if fails_over else []))
        world.shared.lock_server.end_all()
        await asyncio.sleep(1.0)
        again = {tx: await until_told(random.choice(replicas) if all_serve else first(replicas), tx) for tx in answers}
        await asyncio.sleep(SETTLED_S)
        known = {newest_registration(each) for each in replicas}
        assert len(known) == 1
        ((revoked_at, _),) = known
        check(world, revoked_at, answers, again)


def first(replicas: Sequence[Replica]) -> Replica:
    """Whoever leads; else the first, which then says that it does not."""
    return next((each for each in replicas if each.election.is_leading()), replicas[0])


def check(world: World, revoked_at: int, answers: dict[int, Answer], again: dict[int, Answer]) -> None:
    """Answers, receipts and completions say what the log says."""
    found = judged(world)
    accepted = {one.request.tx_id: one.offset for one in found if one.outcome == "NOTARISED"}
    refused = {one.offset for one in found if one.outcome == "KEY_NOT_VALID"}
    assert accepted and max(accepted.values()) < revoked_at
    assert refused and min(refused) > revoked_at, "no request that was on its way reached the log after the revocation"
    for tx, answer in again.items():
        if name_of(tx) in accepted:
            assert isinstance(answer, Notarised), f"an acceptance before the revocation is lost: {tx}"
        else:
            assert isinstance(answer, Refused)
            assert answer.code == Code.KEY_NOT_VALID.name
    for tx, answer in [*answers.items(), *again.items()]:
        match answer:
            case Notarised():
                assert answer.log_offset == accepted[name_of(tx)]
                assert verify_receipt(answer.receipt, SIGNER.public_key)
            case Refused():
                assert (answer.code, name_of(tx) in accepted) == (Code.KEY_NOT_VALID.name, False)
            case NotNow():
                assert answer.code in (Code.OUTCOME_UNKNOWN.name, Code.NOT_ACTIVE.name)
    told = [one for _, one in world.shared.database.completions]
    assert {(one.log_offset, one.outcome) for one in told if one.log_offset in refused | set(accepted.values())} == {
        *((at, "NOTARISED") for at in accepted.values()),
        *((at, "KEY_NOT_VALID") for at in refused),
    }
    assert all(one.log_offset < revoked_at for one in told if one.outcome == "NOTARISED")


@pytest.mark.parametrize("all_serve", [False, True], ids=["one serves", "all serve"])
@on_virtual_time
async def test_a_key_ends_at_one_moment_for_every_replica(all_serve: bool) -> None:
    """Goal: a key for a limited time signs nothing after it, whoever takes the request in, and a fail-over gives it no
    second more. Method: requests at all replicas around the end, the holder of the lock changing then; all again."""
    random = Random(f"{all_serve}/expiry")
    async with World(all_serve=all_serve) as world:
        replicas = await with_an_officer(world, "expiry")
        until_us = world.shared.clock.wall_us() + round(SPREAD_S / 2 * 1e6)
        await first(replicas).participant.note([registration(0, until_us)])
        answers: dict[int, Answer] = {}

        async def ask_somewhere(tx: int) -> None:
            await asyncio.sleep(random.triangular(0, SPREAD_S))  # most when the key ends
            answers[tx] = await ask(random.choice(replicas) if all_serve else first(replicas), tx)

        await asyncio.gather(*[ask_somewhere(tx) for tx in range(1, REQUESTS + 1)])
        world.shared.lock_server.end_all()
        await asyncio.sleep(1.0)
        again = {tx: await until_told(random.choice(replicas) if all_serve else first(replicas), tx) for tx in answers}
        await asyncio.sleep(SETTLED_S)
        check_expiry(world, until_us, again)


def check_expiry(world: World, until_us: int, again: dict[int, Answer]) -> None:
    """Nothing is accepted at a time from the end on; what was before it has its success, also when asked for later."""
    accepted = {one.request.tx_id: one.judged_us for one in judged(world) if one.notarised_offset == one.offset}
    assert accepted and max(accepted.values()) < until_us
    for tx, answer in again.items():
        if name_of(tx) in accepted:
            assert isinstance(answer, Notarised), f"an acceptance before the end is lost: {tx}"
        else:
            assert isinstance(answer, Refused)
            assert answer.code == Code.KEY_NOT_VALID.name
    assert len(accepted) < len(again), "no request came after the end"
