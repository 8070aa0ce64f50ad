"""The lease over a log keeps the contract of a lock session; and what only a lease can show."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from ha.errors import LeaseNotPrepared, LockLost
from replica.log.memory import MemoryLog, MemoryTopic
from replica.notary.records import BarrierRecord, encode_record
from tests.contracts.lock_contract import CLOCK, SETTINGS, LockContract, World, opened
from tests.worlds.lease_world import lease_world


@pytest.fixture
def topic() -> MemoryTopic:
    return MemoryTopic()


@pytest.fixture
async def world(topic: MemoryTopic) -> AsyncIterator[World]:
    async with lease_world(lambda: MemoryLog(topic)) as made:
        yield made


class TestLease(LockContract):
    """See LockContract. The server is a log in memory, read by a follower a session."""


async def test_of_two_claims_at_once_one_is_in_force_and_the_other_is_lost(world: World) -> None:
    """Goal: claims are ordered by the log, and nobody repeats a void one. Method: two sessions claim at one time."""
    first, second = await opened(world, "R1"), await opened(world, "R2")
    answers = await asyncio.gather(first.try_lock(), second.try_lock(), return_exceptions=True)
    lost = [answer for answer in answers if isinstance(answer, LockLost)]
    granted = [answer for answer in answers if not isinstance(answer, BaseException) and answer.granted]
    assert (len(lost), len(granted)) in [(1, 1), (0, 1)]
    for session in (first, second):
        await session.close()


async def test_an_old_log_is_raised_before_a_lease_leads_it(topic: MemoryTopic) -> None:
    """Goal: no claim that readers would not judge. Method: a log under rules 1; the session does not open."""
    async with lease_world(lambda: MemoryLog(topic)) as world:
        topic.store(encode_record(BarrierRecord(99, b"a" * 16, "R1", "postgres:1:1", 1, 1)))
        session = world.session("R2")
        with pytest.raises(LeaseNotPrepared) as refusal:
            await session.open()
        assert not refusal.value.retry


async def test_a_log_that_does_not_take_records_counts_for_nothing(world: World, topic: MemoryTopic) -> None:
    """Goal: an outage of the log deposes nobody. Method: nothing is delivered for two leases; then it is again."""
    holder, peer = await opened(world, "R1"), await opened(world, "R2")
    assert (await holder.try_lock()).granted
    store, held_back = topic.store, []
    topic.store = held_back.append  # type: ignore[method-assign]
    until_s = CLOCK.boottime_s() + 2 * SETTINGS.lease_s
    while CLOCK.boottime_s() < until_s:
        try:
            assert not (await peer.try_lock()).granted
        except LockLost:  # what it asked the log was not answered: the count begins anew with another session
            peer = await opened(world, "R2")
        await asyncio.sleep(SETTINGS.heartbeat_s)
    topic.store = store  # type: ignore[method-assign]
    for value in held_back:
        store(value)
    assert await holder.confirm()
    assert not (await peer.try_lock()).granted
    for session in (holder, peer):
        await session.close()
