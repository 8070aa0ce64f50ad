"""Turns: whoever waits with many calls delays only its own."""

from __future__ import annotations

import asyncio

from ledger_api.server.turns import Turns


async def ask(turns: Turns, holder: str, served: list[str]) -> None:
    async with turns.turn(holder):
        served.append(holder)
        await asyncio.sleep(0)


async def test_callers_are_served_in_turns() -> None:
    """Method: one caller waits with five calls, then two others come with one each."""
    turns, served = Turns(), list[str]()
    async with asyncio.TaskGroup() as group:
        for holder in (*"aaaaa", "b", "c"):
            group.create_task(ask(turns, holder, served))
    assert served == ["a", "a", "b", "c", "a", "a", "a"]


async def test_one_at_a_time_and_nobody_passes_those_who_wait() -> None:
    turns, inside, most = Turns(), 0, 0

    async def enter(holder: int) -> None:
        nonlocal inside, most
        async with turns.turn(holder):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1

    await asyncio.gather(*(enter(number % 3) for number in range(30)))
    assert most == 1


async def test_who_is_gone_does_not_keep_its_turn() -> None:
    """Method: a call that waits is cancelled, and one that was just given its turn; then another gets it."""
    turns, served = Turns(), list[str]()
    async with turns.turn("first"):
        waiting = [asyncio.create_task(ask(turns, holder, served)) for holder in ("gone", "late", "last")]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.sleep(0)
    waiting[1].cancel()  # has been given the turn, and has not run yet
    await asyncio.gather(*waiting, return_exceptions=True)
    assert served == ["last"]
    async with asyncio.timeout(1), turns.turn("after"):
        pass
