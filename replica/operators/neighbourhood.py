"""Looks regularly at what else uses the participant's database. It is logged and shown; nobody is stopped for it."""

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
    """Copies of the ledger, and strangers by a replica's name, that were not there at the look before."""
    known = {(session.name, session.user) for session in before.strangers}
    copies = [ledger for ledger in after.copies if ledger not in before.copies]
    return copies, [session for session in after.strangers if (session.name, session.user) not in known]


class Neighbourhood:
    """Keeps `found` up to date, from `run` until that is cancelled. What cannot be asked now stays as it was seen."""

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
