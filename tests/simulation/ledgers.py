"""Ledgers of replicas that share no database: each machine has one, made of what its replica applies.

The world keeps what is in all of them, as it keeps a shared database's tables. No ledger may contradict it.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

from replica.active.completions import completions_of
from replica.active.derived_ledger import LedgerState
from replica.following.apply import Applied
from replica.notary.errors import InvariantBroken
from replica.notary.position import offset_of
from replica.store.interface import Pruned, Published
from replica.store.memory import MemoryDatabase
from replica.store.words import PRUNED, bound_in

if TYPE_CHECKING:
    from tests.simulation.world import World

_WRITE_MAX_S = 0.003


class OwnLedger:
    """One machine's. See DerivedLedger: it outlives processes, and is never behind the index, but for a while ahead of
    one that lost its newest batches."""

    def __init__(self, world: World, replica: str) -> None:
        self.tables = MemoryDatabase()
        self.lag_records = 0
        self._world = world
        self._replica = replica
        self._random = Random(f"{world.plan.seed}/{replica}/ledger")

    async def run(self) -> None:
        """See DerivedLedger. What is taken is written at once."""

    def state(self) -> LedgerState:
        """See DerivedLedger."""
        return LedgerState(offset_of(self.tables.position), 0, 0, 0)

    def take(self, applied: Applied) -> None:
        """See DerivedLedger."""
        before = offset_of(self.tables.position)
        if applied.reading.after_offset > before:
            raise InvariantBroken(f"the ledger ends at {before}, a run begins after {applied.reading.after_offset}")
        if applied.position.offset <= before:
            return
        end = len(self.tables.completions)
        new = [row for row in completions_of(applied) if row[1].log_offset > before]
        self.tables.publish(new, applied.position, before)
        shared = self._world.primary.tables
        for one, other in zip(self.tables.completions[end:], shared.completions[end:], strict=False):
            if one != other:
                self._world.blame(f"the ledger of {self._replica} has {one}, another one has {other}")
        published = offset_of(shared.position)
        if applied.position.offset > published:
            shared.publish(self.tables.completions[len(shared.completions) :], applied.position, published)

    async def room(self) -> None:
        """See DerivedLedger."""

    async def reached(self, offset: int) -> Published:
        """See Ledger."""
        await asyncio.sleep(self._random.uniform(0.0, _WRITE_MAX_S))
        while offset_of(self.tables.position) < offset:
            await asyncio.sleep(_WRITE_MAX_S)
        return self.tables.published()

    async def prune(self, up_to: int | None, recorded_before_us: int) -> Pruned:
        """See Ledger. Nothing goes but what was said in the log."""
        world = self._world
        said = max((bound_in(value) for _, name, value in world.words.said if name == PRUNED), default=0)
        if up_to is None or not self.tables.pruned_to < up_to <= said:
            world.blame(f"{self._replica} prunes from {self.tables.pruned_to} to {up_to}, and {said} was said")
        pruned = self.tables.prune(up_to, recorded_before_us)
        world.primary.tables.bounds_ever.append(pruned.pruned_to)
        return pruned
