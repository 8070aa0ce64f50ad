"""Defects where operators prune and restore."""

from __future__ import annotations

from pytest import MonkeyPatch

import tests.simulation.restoring
from pipeline.archive.salvage import Survivors, merge
from replica.active.publisher import Publisher
from replica.following.salvaged import SalvagesFound
from replica.notary.reading import RunReader
from replica.notary.salvage import LostEntry, SalvageHeader, Salvages
from tests.simulation.mutants.registry import mutant


@mutant("front ends do not hear how far was pruned")
def pruned_bound_not_taken_over(patch: MonkeyPatch) -> None:
    patch.setattr(Publisher, "note_pruned", lambda self, pruned_to: None)


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


@mutant("ledger offsets and times judged do not go on behind those of the lost records")
def lost_records_name_nothing(patch: MonkeyPatch) -> None:
    patch.setattr(RunReader, "read_lost", lambda self, value: None)
