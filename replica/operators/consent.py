"""Whether a second operator has confirmed an act, as the operators' trail says: for the replica that carries it out.

So a destructive call of the admin listener needs two signatures, whoever makes it, and not only the command's word.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime

from replica.store.bulletin import Board
from replica.store.four_eyes import FourEyesRefused, check_begun
from replica.store.trail import Signatories, follow, head_before
from replica.store.trail_writing import TrailUnavailable, entries_since

READ_MAX_S = 10.0


class TrailConsent:
    """See Consent."""

    def __init__(
        self,
        open_board: Callable[[], AbstractAsyncContextManager[Board]],
        known: Callable[[], Signatories],
        acts: Collection[str],
        within_s: float,
    ) -> None:
        """`known`: whose signatures count, read anew for each act. `acts`: those that need consent."""
        self._open_board = open_board
        self._known = known
        self._acts = frozenset(acts)
        self._within_s = within_s

    async def check(self, act: str, details: Mapping[str, str], entry: int | None) -> None:
        """See Consent. Raises FourEyesRefused, TrailBroken and TrailUnavailable."""
        if act not in self._acts:
            return
        if entry is None:
            raise FourEyesRefused(f"{act} needs a second operator's consent: --propose, then --confirm")
        try:
            async with asyncio.timeout(READ_MAX_S), self._open_board() as board:
                found = await board.trail(entry - 1, 1)
                begun = follow(found, head_before(found)).entries  # only to find the proposal
                first = next((one.of for one in begun), None) or entry
                entries, _ = await entries_since(board, first, await asyncio.to_thread(self._known))
        except TimeoutError:
            raise TrailUnavailable(f"no answer within {READ_MAX_S:g} s") from None
        check_begun(entries, entry, act=act, details=details, now=datetime.now(UTC), within_s=self._within_s)
