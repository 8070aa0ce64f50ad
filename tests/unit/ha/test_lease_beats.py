"""Signs of life over a log that returns records late, as it does under load. On virtual time."""

from __future__ import annotations

import asyncio

import pytest

from ha.errors import LockLost
from ha.lock.interface import ReleaseNote
from ha.lock.lease import LeaseSession, beat_s
from ha.lock.silence import LeaseView
from tests.contracts.lock_contract import SETTINGS
from tests.virtual_time import on_virtual_time
from tests.worlds.ha_world import LoopClock

ROUND_TRIP_S = 0.45  # more than two heartbeats; `answer_max_s` is 0.6
HEARTBEAT_S = SETTINGS.heartbeat_s


class SlowLog:
    """A LeaseLog whose records come back so late. Nobody else claims."""

    def __init__(self) -> None:
        self.signs_at_s: list[float] = []
        self.released: list[ReleaseNote | None] = []
        self._view = LeaseView("log", 1, b"", None, None, -1)

    def view(self) -> LeaseView:
        return self._view

    async def moved(self) -> None:
        await asyncio.Event().wait()

    async def catch_up(self) -> None:
        """Nothing is behind."""

    async def confirm_end(self) -> None:
        """Nothing is behind."""

    async def claim(self, name: str, view: LeaseView) -> bytes:
        self._view = LeaseView("log", 2, b"a" * 16, name, None, 0)
        return self._view.activation_id

    async def show_life(self, activation_id: bytes, number: int) -> bool:
        assert number == len(self.signs_at_s)
        self.signs_at_s.append(asyncio.get_running_loop().time())
        await asyncio.sleep(ROUND_TRIP_S)
        return activation_id == self._view.activation_id

    async def release(self, view: LeaseView, note: ReleaseNote | None) -> None:
        self.released.append(note)

    def end(self) -> None:
        """Nothing is open."""


async def _holder(log: SlowLog) -> LeaseSession:
    session = LeaseSession(log, name="R1", settings=SETTINGS, clock=LoopClock())
    await session.open()
    assert (await session.try_lock()).granted
    return session


@on_virtual_time
async def test_the_newest_sign_that_came_back_is_one_wait_old_not_two() -> None:
    """Goal: load costs the lease one wait for the log. Method: ask as the election does; the greatest age seen."""
    loop, log = asyncio.get_running_loop(), SlowLog()
    session = await _holder(log)
    await session.confirm()
    ages: list[float] = []
    while loop.time() < 10:
        asking = asyncio.create_task(session.confirm())
        while not asking.done():
            ages.append(loop.time() - session.answered_at_s)
            await asyncio.sleep(SETTINGS.tick_s)
        await asking
    assert max(ages) <= ROUND_TRIP_S + beat_s(SETTINGS) + 2 * SETTINGS.tick_s < 2 * ROUND_TRIP_S
    await session.close()


@on_virtual_time
async def test_an_election_that_asks_no_more_is_not_kept_alive() -> None:
    """Goal: no sign of life without an election. Method: ask once, then never; when the last sign was sent."""
    log = SlowLog()
    session = await _holder(log)
    asked_at_s = await session.confirm()
    await asyncio.sleep(5)
    assert log.signs_at_s[-1] < asked_at_s + SETTINGS.confirmed_age_max_s
    await session.close()


@on_virtual_time
async def test_an_idle_holder_sends_no_more_than_it_is_asked_for() -> None:
    """Goal: an idle log does not grow faster. Method: the election's own pace, over a log that answers at once."""
    log = SlowLog()
    session = await _holder(log)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.unit.ha.test_lease_beats.ROUND_TRIP_S", 0.01)
        for _ in range(20):
            asking = asyncio.create_task(session.confirm())
            await asyncio.sleep(HEARTBEAT_S + SETTINGS.tick_s)
            await asking
    assert len(log.signs_at_s) == 20
    await session.close()


@on_virtual_time
async def test_nothing_is_sent_once_the_session_is_closed() -> None:
    """Goal: who gave the lease up shows no life. Method: close while signs are on their way."""
    log = SlowLog()
    session = await _holder(log)
    asking = asyncio.create_task(session.confirm())
    await asyncio.sleep(HEARTBEAT_S)
    await session.close()
    sent = len(log.signs_at_s)
    await asyncio.gather(asking, return_exceptions=True)
    await asyncio.sleep(5)
    assert len(log.signs_at_s) == sent
    with pytest.raises(LockLost):
        await asking


@pytest.mark.parametrize("gives_back", [True, False])
@on_virtual_time
async def test_a_lease_that_is_not_given_back_is_released_for_a_named_replica_only(gives_back: bool) -> None:
    """Goal: an orderly end of the holder does not stop those that serve under its activation, while nobody may claim.
    Method: release for
    nobody, end without a release, and hand over; what the log gets."""

    async def released(*release: str | None) -> list[ReleaseNote | None]:
        log = SlowLog()
        session = LeaseSession(log, name="R1", settings=SETTINGS, clock=LoopClock(), gives_back=lambda: gives_back)
        await session.open()
        assert (await session.try_lock()).granted
        for to in release:
            await session.release(to)
        await session.close()
        return log.released

    assert await released("R2") == [ReleaseNote("R1", "R2")]
    assert await released(None) == ([ReleaseNote("R1", None)] if gives_back else [])
    assert await released() == ([None] if gives_back else [])
