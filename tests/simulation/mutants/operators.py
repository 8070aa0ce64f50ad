"""Defects where operators prune and restore."""

from __future__ import annotations

import msgspec
from pytest import MonkeyPatch

import replica.active.admission
import tests.simulation.restoring
from pipeline.archive.salvage import Survivors, merge
from replica.active.deduplication import Period, Remembered, period_of
from replica.active.publisher import Publisher
from replica.following.salvaged import SalvagesFound
from replica.link.interface import SubmitOptions
from replica.notary.answers import DeduplicationBound
from replica.notary.salvage import LostEntry, SalvageHeader, Salvages
from replica.store.interface import Command, Published
from replica.store.memory import MemoryStore
from tests.simulation.mutants.registry import mutant


@mutant("a deduplication period that reaches beyond what was pruned is shortened, and nobody is told")
def period_shortened_by_pruning(patch: MonkeyPatch) -> None:
    def shorten(options: SubmitOptions, remembered: Remembered, now_us: int) -> Period | DeduplicationBound:
        return period_of(options, msgspec.structs.replace(remembered, pruned_to=0, pruned_us=0), now_us)

    patch.setattr(replica.active.admission, "period_of", shorten)


@mutant("a new activation does not ask how far was pruned")
def pruned_bound_not_taken_over(patch: MonkeyPatch) -> None:
    def begin(self: Publisher, published: Published) -> None:
        self.position, self.ledger_end = published.position, published.ledger_end

    patch.setattr(Publisher, "begin", begin)


@mutant("what is in flight in a backup is looked for among all completions since, in one statement")
def in_flight_not_carried(patch: MonkeyPatch) -> None:
    async def pending(self: MemoryStore, limit: int) -> list[Command]:
        commands = await self._run("pending", lambda: self._database.pending(limit))
        self._settled = self._settled or not commands
        return commands

    patch.setattr(MemoryStore, "pending", pending)


@mutant("what a lost record decided is passed over, as by a reader that knows nothing of salvages")
def lost_records_are_void(patch: MonkeyPatch) -> None:
    patch.setattr(Salvages, "entries_of", lambda self, records: {})

    async def found(self: SalvagesFound, applied_offset: int) -> frozenset[str]:
        return frozenset(digest.hex() for digest in self._missing)

    patch.setattr(SalvagesFound, "found", found)


@mutant("a tail is salvaged from completions alone: what was answered and not published yet is forgotten")
def salvaged_from_completions_alone(patch: MonkeyPatch) -> None:
    def poor(survivors: Survivors, *, at_us: int, public_key: bytes) -> tuple[SalvageHeader, list[LostEntry]]:
        header, entries = merge(survivors, at_us=at_us, public_key=public_key)
        return header, [entry for entry in entries if entry.offset <= survivors.published]

    patch.setattr(tests.simulation.restoring, "merge", poor)
