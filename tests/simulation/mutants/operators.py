"""Defects where operators prune and restore."""

from __future__ import annotations

from pytest import MonkeyPatch

import tests.simulation.restoring
from pipeline.archive.salvage import Survivors, merge
from replica.active.publisher import Publisher
from replica.following.salvaged import SalvagesFound
from replica.notary.salvage import LostEntry, SalvageHeader, Salvages
from replica.store.interface import Published
from tests.simulation.mutants.registry import mutant


@mutant("a new activation does not ask how far was pruned")
def pruned_bound_not_taken_over(patch: MonkeyPatch) -> None:
    def begin(self: Publisher, published: Published) -> None:
        self.position, self.ledger_end = published.position, published.ledger_end

    patch.setattr(Publisher, "begin", begin)


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
