"""Defects in admission, publishing and the participant store."""

from __future__ import annotations

from typing import Any

from pytest import MonkeyPatch

from replica.active.admission_budget import AdmissionBudget
from replica.active.watchdog import StallWatchdog
from replica.notary.position import Position, offset_of
from replica.store.memory import MemoryDatabase, MemoryStore
from tests.simulation.mutants.registry import mutant


@mutant("ledger offsets are drawn from a sequence, which a lost transaction does not give back")
def ledger_offsets_from_a_sequence(patch: MonkeyPatch) -> None:
    publish = MemoryDatabase.publish

    async def draw_first(self: MemoryStore, completions: Any, position: Position) -> int:
        database = self._database
        count = len(completions)

        def draw() -> int:
            drawn = vars(database).setdefault("drawn", 0)
            vars(database)["drawn"] = drawn + count
            return int(drawn)

        def write(start: int) -> int:
            before = len(database.completions)
            end = publish(database, completions, position, offset_of(database.position))
            numbered = [(start + 1 + at, c) for at, (_, c) in enumerate(database.completions[before:])]
            database.completions[before:] = numbered
            return end

        start = await self._run("nextval", draw)
        return await self._run("publish", lambda: write(start))

    patch.setattr(MemoryStore, "publish", draw_first)


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
            return len(database.completions)

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
