"""The publisher: what it is asked while a transaction is under way."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from replica.active.publisher import Publisher
from replica.following.apply import Applied
from replica.notary.position import BEGIN, Position
from replica.notary.reading import Reading
from replica.settings import CoreSettings
from replica.store.interface import Completion
from replica.store.memory import MemoryDatabase, MemoryStore
from tests.contracts.store_contract import at


class SlowStore(MemoryStore):
    """Its transactions last until they are let go."""

    def __init__(self) -> None:
        self.began, self.go_on = asyncio.Event(), asyncio.Event()
        self._tables = MemoryDatabase()

    async def publish(self, completions: Sequence[Completion], position: Position) -> int:
        self.began.set()
        await self.go_on.wait()
        return self._tables.publish(completions, position, BEGIN)


async def test_it_ends_after_the_transaction_that_is_under_way() -> None:
    """Goal: an activation that ends while it publishes does not wait for nothing. Method: stop in mid-transaction."""
    store = SlowStore()
    publisher = Publisher(store, CoreSettings(), lambda: None)
    publisher.add(Applied(Reading(at(7), [], [], [], 6), []))
    running = asyncio.create_task(publisher.run())
    await store.began.wait()
    publisher.stop()
    store.go_on.set()
    async with asyncio.timeout(5):
        await running
    assert publisher.position == at(7)
