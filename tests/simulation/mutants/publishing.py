"""Defects in admission, publishing and the participant store."""

from __future__ import annotations

from typing import Any

from pytest import MonkeyPatch

from replica.active.admission_budget import AdmissionBudget
from replica.active.watchdog import StallWatchdog
from replica.notary.position import Position, offset_of
from replica.store.memory import MemoryDatabase, MemoryStore
from tests.simulation.mutants.registry import mutant


@mutant("completions are numbered as many as there are, whatever the log says")
def completions_numbered_by_the_database(patch: MonkeyPatch) -> None:
    extend = MemoryDatabase.publish

    def numbered(self: MemoryDatabase, completions: Any, position: Position, after_offset: int) -> int:
        start = len(self.completions)
        pruned_to = extend(self, completions, position, after_offset)
        self.completions[start:] = [(at, one) for at, (_, one) in enumerate(completions, start + 2)]
        return pruned_to

    patch.setattr(MemoryDatabase, "publish", numbered)


@mutant("completions and the published position are two transactions")
def published_position_outside_the_transaction(patch: MonkeyPatch) -> None:
    publish = MemoryDatabase.publish

    async def in_two(self: MemoryStore, completions: Any, position: Position) -> int:
        database = self._database

        def first() -> None:
            before = database.position
            publish(database, completions, position, offset_of(database.position))
            database.position = before

        def second() -> int:
            database.position = position
            return database.pruned_to

        await self._run("publish", first)
        return await self._run("publish_position", second)

    patch.setattr(MemoryStore, "publish", in_two)


@mutant("what was in flight is never given back to the bound on it")
def load_never_given_back(patch: MonkeyPatch) -> None:
    patch.setattr(AdmissionBudget, "leave", lambda *_: None)


@mutant("nobody watches whether records read back")
def stall_not_watched(patch: MonkeyPatch) -> None:
    async def sleep(self: StallWatchdog) -> None:
        await self._ending.wait()

    patch.setattr(StallWatchdog, "run", sleep)
