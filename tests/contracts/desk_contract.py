"""The contract of a worker's desk. A class that inherits it provides the fixtures `new_desk` and `new_store`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from ha.clock import SystemClock
from replica.store.desk import Desk
from tests.contracts.store_contract import NewStore, activated, command, completion, publish

NewDesk = Callable[[], AbstractAsyncContextManager[Desk]]
"""A desk on a connection of its own, to the database of `new_store`."""

CLOCKS_APART_MAX_US = 5_000_000


class DeskContract:
    """What every desk promises."""

    async def test_a_new_database_has_nothing_published_and_its_own_clock(self, new_desk: NewDesk) -> None:
        async with new_desk() as desk:
            seen = await desk.look()
            assert (seen.published_offset, seen.ledger_end, seen.pruned_to) == (-1, 0, 0)
            assert abs(seen.wall_us - SystemClock().wall_us()) < CLOCKS_APART_MAX_US
            assert (await desk.look()).wall_us >= seen.wall_us

    async def test_it_shows_what_is_published_and_pruned_as_one_pair(
        self, new_desk: NewDesk, new_store: NewStore
    ) -> None:
        store = await activated(new_store)
        async with new_desk() as desk:
            await publish(store, [completion(command(1), 11), completion(command(2), 12)], 12)
            seen = await desk.look()
            assert (seen.published_offset, seen.ledger_end, seen.pruned_to) == (12, 2, 0)
            await publish(store, [], 20, 2)
            seen = await desk.look()
            assert (seen.published_offset, seen.ledger_end) == (20, 2)
            await store.prune(1, 2**62)
            assert (await desk.look()).pruned_to == 1

    async def test_each_draw_is_given_to_one(self, new_desk: NewDesk) -> None:
        """Goal: no number twice, whoever asks at once. Method: four desks draw five times each, then a new one."""

        async def draw() -> list[int]:
            async with new_desk() as desk:
                return [(await desk.draw()).number for _ in range(5)]

        drawn = await asyncio.gather(*(draw() for _ in range(4)))
        assert all(numbers == sorted(numbers) for numbers in drawn)
        assert sorted(number for numbers in drawn for number in numbers) == list(range(1, 21))
        async with new_desk() as desk:
            assert (await desk.draw()).number == 21

    async def test_draws_name_the_database_as_barriers_do(self, new_desk: NewDesk, database_name: str) -> None:
        async with new_desk() as desk:
            assert (await desk.draw()).database == database_name
