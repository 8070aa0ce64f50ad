"""Looks regularly for other users of the participant's database. Logs and shows them; stops none of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from ha.clock import Clock
from replica.notary.errors import NotaryError
from replica.store.neighbours import Ledger, NamedSession, Neighbours

log = structlog.get_logger()

LOOK_EVERY_S = 60.0
LOOK_MAX_S = 10.0


def news(before: Neighbours, after: Neighbours) -> tuple[list[Ledger], list[NamedSession]]:
    """New since the last look: copies of the ledger, and foreign sessions under a replica's name."""
    known = {(session.name, session.user) for session in before.strangers}
    copies = [ledger for ledger in after.copies if ledger not in before.copies]
    return copies, [session for session in after.strangers if (session.name, session.user) not in known]


class Neighbourhood:
    """Keeps `found` up to date, from `run` until that is cancelled. A part without an answer keeps its last value."""

    def __init__(self, look: Callable[[], Awaitable[Neighbours]], clock: Clock) -> None:
        self.found = Neighbours()
        self._look = look
        self._clock = clock

    async def run(self) -> None:
        """Look once a minute."""
        while True:
            try:
                async with asyncio.timeout(LOOK_MAX_S):
                    self._note(await self._look())
            except (NotaryError, TimeoutError) as error:  # the lock session reports a database that is not there
                log.debug("neighbours_unseen", detail=str(error))
            await self._clock.sleep_s(LOOK_EVERY_S)

    def _note(self, found: Neighbours) -> None:
        copies, strangers = news(self.found, found)
        for ledger in copies:
            log.warning("ledger_copied", schema=ledger.schema, owner=ledger.owner)
        for session in strangers:
            log.warning("name_borrowed", name=session.name, user=session.user, session=str(session))
        self.found = found
