"""Adds entries to the operators' trail, wherever it is kept, and reads it page by page."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from replica.notary.codes import Code
from replica.notary.errors import NotaryError
from replica.store.trail import Entry, Head, Signatories, TrailBroken, follow, head_before, head_of, still_has

TRIES_MAX = 20  # of one entry, while others add theirs
PAUSE_S = 0.01  # grows with each try, and is drawn: writers that meet do not meet again
PAGE_LINES = 500


class TrailUnavailable(NotaryError):
    """The trail was not written or read; whoever needs it for an act does not act."""

    default_code = Code.TRAIL_UNAVAILABLE


class TrailKeeper(Protocol):
    """Where the trail is kept. Every method raises StoreUnavailable and StoreMismatch, or LogUnavailable and
    ConfigError."""

    async def newest_of_trail(self) -> bytes | None:
        """The newest line; None: there is none."""

    async def trail(self, after: int, limit: int) -> list[bytes]:
        """The first lines with numbers above `after`, in their order."""

    async def extend_trail(self, number: int, line: bytes) -> bool:
        """Keep the line if `number` follows on the newest one's; whether it was kept. Never replaces a line."""


async def add_line(keeper: TrailKeeper, make: Callable[[Head], bytes]) -> Head:
    """Add the line that `make` returns for the trail's head, again for another head where somebody came first.

    Raises TrailUnavailable, TrailBroken, and what `make` and the keeper raise.
    """
    for tried in range(TRIES_MAX):
        await asyncio.sleep(random.uniform(0, PAUSE_S * tried))  # noqa: S311 -- a pause, not a secret
        head = head_of(await keeper.newest_of_trail())
        line = make(head)
        if await keeper.extend_trail(head.number + 1, line):
            return head_of(line)
    raise TrailUnavailable(f"others added {TRIES_MAX} entries meanwhile")


async def lines_after(keeper: TrailKeeper, head: Head) -> AsyncIterator[bytes]:
    """All lines after a head that somebody remembers. Raises TrailBroken unless the trail still has that."""
    at = head.number
    if at:
        found = await keeper.trail(at - 1, 1)
        line = found[0] if found and head_of(found[0]).number == at else None
        if (broken := still_has(line, head)) is not None:
            raise TrailBroken(str(broken))
    while page := await keeper.trail(at, PAGE_LINES):
        for line in page:
            yield line
        at = head_of(page[-1]).number


async def entries_since(keeper: TrailKeeper, number: int, known: Signatories) -> tuple[tuple[Entry, ...], Head]:
    """The trail from an entry to its end. Raises TrailBroken unless known people signed all of it."""
    lines: list[bytes] = []
    after = number - 1
    while page := await keeper.trail(after, PAGE_LINES):
        lines += page
        after += len(page)
    found = follow(lines, head_before(lines), known)
    if found.broken is not None:
        raise TrailBroken(str(found.broken))
    return found.entries, found.head


async def bring_back(keeper: TrailKeeper, lines: list[bytes]) -> int:
    """Add the lines of an export that the trail has lost; how many. Raises TrailBroken where the two have parted."""
    whole = follow(lines, head_before(lines))
    if whole.broken is not None:
        raise TrailBroken(f"the export is not whole: {whole.broken}")
    added = 0
    for line in lines:
        head, mine = head_of(await keeper.newest_of_trail()), head_of(line)
        if mine.number <= head.number:
            kept = await keeper.trail(mine.number - 1, 1)
            if not kept or kept[0] != line:
                raise TrailBroken(f"entry {mine.number} is another one in the export")
        elif follow([line], head).broken is not None or not await keeper.extend_trail(mine.number, line):
            raise TrailBroken(f"entry {mine.number} of the export does not follow on entry {head.number} of the trail")
        else:
            added += 1
    return added
