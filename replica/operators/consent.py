"""Whether an act stands in the operators' trail, with all that this notary asks of one: for the replica that does it.

So no call of the admin listener has an effect that the trail does not tell, whoever makes it: a command's word is not
enough.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime

from replica.settings import OperatorsSettings
from replica.store.bulletin import Board
from replica.store.four_eyes import NotInTrail, check_begun
from replica.store.trail import Signatories, follow, head_before
from replica.store.trail_writing import TrailUnavailable, entries_since

READ_MAX_S = 10.0
USED_MAX = 10_000  # entries that are remembered as used; an entry counts for minutes


class TrailConsent:
    """See Consent."""

    def __init__(
        self,
        open_board: Callable[[], AbstractAsyncContextManager[Board]],
        known: Callable[[], Signatories],
        settings: OperatorsSettings,
    ) -> None:
        """`known`: whose signatures count, read anew for each act."""
        self._open_board = open_board
        self._known = known
        self._settings = settings
        self._used: deque[int] = deque(maxlen=USED_MAX)

    async def check(self, act: str, details: Mapping[str, str], entry: int | None) -> None:
        """See Consent. Raises NotInTrail, FourEyesRefused, TrailBroken and TrailUnavailable."""
        if entry is None:
            raise NotInTrail(f"{act} was asked for without an entry of the operators' trail")
        try:
            async with asyncio.timeout(READ_MAX_S), self._open_board() as board:
                found = await board.trail(entry - 1, 1)
                begun = follow(found, head_before(found)).entries  # only to find the proposal
                first = next((one.of for one in begun), None) or entry
                entries, _ = await entries_since(board, first, await asyncio.to_thread(self._known))
        except TimeoutError:
            raise TrailUnavailable(f"no answer within {READ_MAX_S:g} s; the act was not done") from None
        check_begun(
            entries,
            entry,
            act=act,
            details=details,
            now=datetime.now(UTC),
            reason_required=self._settings.reason_required,
            two_people=act in self._settings.four_eyes,
            within_s=self._settings.confirm_within_s,
        )
        if entry in self._used:
            raise NotInTrail(f"entry {entry} of the operators' trail has begun an act already")
        self._used.append(entry)
