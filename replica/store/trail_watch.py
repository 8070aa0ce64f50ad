"""Each replica remembers the newest entry of the operators' trail that it has seen, and looks if it is still there.

So a tail that somebody deletes is noticed, unless it is deleted before the next look and everywhere. The trail has no
effect on answers, so nothing here stops a replica: it is an alert.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path

import structlog

from replica.notary.errors import InvariantBroken, NotaryError
from replica.store.bulletin import Board
from replica.store.trail import Head, TrailBroken, follow, parse_head
from replica.store.trail_writing import lines_after

log = structlog.get_logger()

LOOK_MAX_S = 60.0  # a long trail is read once, at a replica's first look
CURSOR = "trail.cursor"  # in the replica's folder


class TrailWatch:
    """Follows the trail, from `run` until that is cancelled. `broken`: what is wrong with it; empty for nothing."""

    def __init__(
        self,
        open_board: Callable[[str], AbstractAsyncContextManager[Board]],
        replica: str,
        cursor: Path,
        *,
        look_every_s: float,
    ) -> None:
        """`open_board` takes the name that the server shows; `cursor` is the file in which the newest entry is kept.

        Whoever deletes that file makes the replica take the trail as it is from then on.
        """
        self.broken = ""
        self.entries = 0
        self._open_board = open_board
        self._replica = replica
        self._cursor = cursor
        self._look_every_s = look_every_s

    async def run(self) -> None:
        """Look every `look_every_s`. What keeps the trail may be away, which others report."""
        while True:
            with suppress(NotaryError, InvariantBroken, TimeoutError, OSError):
                async with asyncio.timeout(LOOK_MAX_S):
                    await self.look()
            await asyncio.sleep(self._look_every_s)

    async def look(self) -> None:
        """Follow the trail from the newest entry seen. Raises NotaryError where it cannot be read, and OSError."""
        head = self._seen()
        broken = ""
        try:
            async with self._open_board(f"{self._replica}/trail") as board:
                async for line in lines_after(board, head):
                    found = follow([line], head)
                    if found.broken is not None:
                        broken = str(found.broken)
                        break
                    head = found.head
        except TrailBroken as error:
            broken = error.detail
        if not broken:
            self._remember(head)
        self._note(broken, head)

    def _note(self, broken: str, head: Head) -> None:
        if broken and broken != self.broken:
            log.error("trail_broken", detail=broken)
        elif self.broken and not broken:
            log.info("trail_whole", entries=head.number)
        self.broken, self.entries = broken, head.number

    def _seen(self) -> Head:
        with suppress(FileNotFoundError):
            return parse_head(self._cursor.read_text(encoding="ascii", errors="replace"))
        return Head()

    def _remember(self, head: Head) -> None:
        if head != self._seen():
            draft = self._cursor.with_name(f".{self._cursor.name}.new")
            draft.write_text(f"{head}\n", encoding="ascii")
            draft.replace(self._cursor)
