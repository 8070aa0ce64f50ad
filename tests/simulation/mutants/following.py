"""Defects in what front ends serve of the published completions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable
from typing import Any

from pytest import MonkeyPatch

from ledger_api.server.feed import Feed
from ledger_api.server.feed_lines import Entry, Line, Wanted
from ledger_api.server.feed_tail import Tail
from tests.simulation.mutants.registry import mutant


@mutant("a stream begins with the completion that its reader has already")
def offset_is_inclusive(patch: MonkeyPatch) -> None:
    follow = Feed.follow

    def inclusive(self: Feed, wanted: Wanted, after: int) -> AsyncIterator[list[Line]]:
        return follow(self, wanted, max(0, after - 1))

    patch.setattr(Feed, "follow", inclusive)


@mutant("a page is taken for all that is published, and what lies behind it is passed over")
def page_taken_for_all(patch: MonkeyPatch) -> None:
    read = Feed._read

    async def hasty(self: Feed, after: int, standing: Any, holder: Hashable) -> list[Entry]:
        entries = list(await read(self, after, standing, holder))
        return [*entries, Entry(standing.ledger_end, entries[-1].completion)]

    patch.setattr(Feed, "_read", hasty)


@mutant("what is kept of the newest completions has a hole where a reader came in later")
def kept_rows_have_a_hole(patch: MonkeyPatch) -> None:
    def keep(self: Tail, entries: list[Entry]) -> None:
        self.entries.extend(entries)

    patch.setattr(Tail, "keep", keep)
