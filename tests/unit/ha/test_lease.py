"""The lease over a log keeps the contract of a lock session; and what only a lease can show."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest

from ha.errors import LockLost
from ha.lock.interface import ReleaseNote
from replica.log.interface import LogEnd, LogWriter
from replica.log.memory import MemoryLog, MemoryTopic
from tests.contracts.lock_contract import CLOCK, SETTINGS, LockContract, World, opened
from tests.contracts.lock_machine import LeaseMachine, LockWorld, lock_world, memory_world
from tests.contracts.side_by_side import played
from tests.contracts.store_machine import PATIENT
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

    async def test_who_is_granted_the_lock_learns_for_whom_it_was_released(self, world: World) -> None:
        """Goal: no claim out of turn: it would make the claim of the one whose turn it is void. Method: release for R2,
        ask as R3 before it heard so; ask as R2; and R3 when it heard, as for an R2 that does not come."""
        first, second, third = [await opened(world, name) for name in ("R1", "R2", "R3")]
        assert (await first.try_lock()).granted
        await first.release("R2")
        assert not (await third.try_lock()).granted
        granted = await second.try_lock()
        assert (granted.granted, granted.released) == (True, ReleaseNote("R1", "R2"))
        await second.release("R1")
        note = await third.wait_release()
        while note.by == "R1":  # the newer one may not be read yet
            note = await third.wait_release()
        granted = await third.try_lock()
        assert (granted.granted, granted.released) == (True, ReleaseNote("R2", "R1"))
        for session in (first, second, third):
            await session.close()


def test_it_answers_as_the_double_does() -> None:
    """Goal: see LeaseMachine. Method: random calls."""

    @asynccontextmanager
    async def world() -> AsyncIterator[LockWorld]:
        topic = MemoryTopic()
        async with (
            lease_world(lambda: MemoryLog(topic), PATIENT) as lease,
            lock_world(lease, tells_notes=False) as made,
        ):
            yield made

    played(partial(LeaseMachine, partial(memory_world, tells_notes=False), world), examples=8, steps=30)


async def test_a_replica_that_gave_the_lease_up_is_not_kept_away_by_its_own_note(world: World) -> None:
    """Goal: it leads again at once where the other one fails. Method: release for R2; look and claim as the giver."""
    giver = await opened(world, "R1")
    assert (await giver.try_lock()).granted
    await giver.release("R2")
    await giver.close()
    giver = await opened(world, "R1")
    view = await giver.look()
    assert (view.free, view.released) == (True, None)
    granted = await giver.try_lock()
    assert (granted.granted, granted.released) == (True, None)
    await giver.close()


async def test_of_two_claims_at_once_one_is_in_force_and_the_other_is_lost(world: World) -> None:
    """Goal: claims are ordered by the log, and nobody repeats a void one. Method: two sessions claim at one time."""
    first, second = await opened(world, "R1"), await opened(world, "R2")
    answers = await asyncio.gather(first.try_lock(), second.try_lock(), return_exceptions=True)
    lost = [answer for answer in answers if isinstance(answer, LockLost)]
    granted = [answer for answer in answers if not isinstance(answer, BaseException) and answer.granted]
    assert (len(lost), len(granted)) in [(1, 1), (0, 1)]
    for session in (first, second):
        await session.close()


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


class Lives:
    """The lifelines that the servers of a log see, and those that have ended."""

    def __init__(self) -> None:
        self.ended: dict[bytes, asyncio.Event] = {}
        self.closed: list[bytes] = []

    def end_of(self, activation_id: bytes) -> asyncio.Event:
        return self.ended.setdefault(activation_id, asyncio.Event())


class WatchedLog(MemoryLog):
    """A log whose servers see processes end: see WatchingLog."""

    lives: Lives

    def tie(self, activation_id: bytes) -> Lifeline:
        return Lifeline(self.lives, activation_id)

    async def open_shared_writer(self) -> LogWriter:
        return await self.open_writer()

    async def wait_for_end(self, activation_id: bytes) -> None:
        await self.lives.end_of(activation_id).wait()


class Lifeline:
    def __init__(self, lives: Lives, activation_id: bytes) -> None:
        self._lives, self._id = lives, activation_id

    async def close(self) -> None:
        self._lives.closed.append(self._id)


@pytest.fixture
async def watched(topic: MemoryTopic) -> AsyncIterator[tuple[World, Lives]]:
    lives = Lives()

    def open_log() -> WatchedLog:
        log = WatchedLog(topic)
        log.lives = lives
        return log

    async with lease_world(open_log) as made:
        yield made, lives


async def test_a_holder_whose_end_was_seen_is_replaced_at_once(watched: tuple[World, Lives]) -> None:
    """Goal: no silence is waited for, and the waiter is woken. Method: the log's servers say that the holder ended,
    first a process of no interest, then the holder's."""
    world, lives = watched
    holder, peer = await opened(world, "R1"), await opened(world, "R2")
    assert (await holder.try_lock()).granted
    assert holder.grant is not None
    hearing = asyncio.create_task(peer.wait_release())
    await asyncio.sleep(SETTINGS.heartbeat_s)
    lives.end_of(b"x" * 16).set()
    assert await holder.confirm()
    assert not (await peer.try_lock()).granted
    assert not hearing.done()
    lives.end_of(holder.grant.activation_id).set()
    async with asyncio.timeout(SETTINGS.lease_s / 2):
        assert await hearing == ReleaseNote("R1", None)
        assert (await peer.look()).owner is None
        assert (await peer.try_lock()).granted
    for session in (holder, peer):
        await session.close()


async def test_a_lifeline_is_closed_only_when_nobody_leads_by_it(watched: tuple[World, Lives]) -> None:
    """Goal: its end proves that this replica leads no more. Method: note at each close whether the session is open."""
    world, lives = watched
    session = await opened(world, "R1")
    assert (await session.try_lock()).granted
    was_closed: list[bool] = []
    close = Lifeline.close

    async def noting(self: Lifeline) -> None:
        was_closed.append(session.closed)
        await close(self)

    Lifeline.close = noting  # type: ignore[method-assign]
    try:
        assert await session.confirm()
        await session.release("R2")
        await asyncio.sleep(SETTINGS.heartbeat_s)
        assert not lives.closed
        await session.close()
        await asyncio.sleep(SETTINGS.heartbeat_s)
    finally:
        Lifeline.close = close  # type: ignore[method-assign]
    assert was_closed
    assert all(was_closed)
    assert len(set(lives.closed)) == 1


class TimedLog(MemoryLog):
    """A log whose servers say how long it was quiet, up to an end that may lie behind what is read already."""

    quiet_s: float | None = None
    behind = 0

    async def end_and_quiet(self) -> LogEnd:
        return LogEnd(await self.agreed_end_offset() - self.behind, self.quiet_s)


async def test_what_the_logs_servers_know_of_a_silence_counts_up_to_their_end(topic: MemoryTopic) -> None:
    """Goal: a holder whose last record is read late is replaced on time, and one that wrote since is not. Method: the
    servers tell a silence as long as the lease; first for an end before the newest record, then for the end."""
    told: list[TimedLog] = []

    def open_log() -> TimedLog:
        told.append(TimedLog(topic))
        return told[-1]

    async with lease_world(open_log) as world:
        holder, peer = await opened(world, "R1"), await opened(world, "R2")
        assert (await holder.try_lock()).granted
        assert not (await peer.try_lock()).granted
        for log in told:
            log.quiet_s, log.behind = SETTINGS.lease_s, 1
        assert not (await peer.try_lock()).granted
        for log in told:
            log.behind = 0
        assert (await peer.try_lock()).granted
        for session in (holder, peer):
            await session.close()
