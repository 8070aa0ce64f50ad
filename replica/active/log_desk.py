"""What a notary worker asks where the replicas share no database: its own ledger, and words and clocks of the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ha.clock import Clock
from replica.log.interface import ClockedLog
from replica.notary.granters import THE_LOG
from replica.notary.position import BEGIN
from replica.notary.words import WordsLog, replace
from replica.store.desk import DeskSeen, Drawn
from replica.store.interface import Published
from replica.store.words import NUMBERS, drawn, draws_in

CLOCK_EVERY_S = 1.0  # a worker may look twenty times a second, and no clock drifts so fast
_MARK_BYTES = 16


class Ledger(Protocol):
    """The replica's own. Raises StoreUnavailable."""

    async def reached(self, offset: int) -> Published:
        """The progress once it covers the log up to that offset."""


class LogDesk:
    """See Desk. Raises LogUnavailable as well. One for the life of a replica: nothing has to be opened."""

    def __init__(
        self,
        ledger: Ledger,
        log: WordsLog,
        log_id: Callable[[], str],
        clock: Clock,
        random_bytes: Callable[[int], bytes],
    ) -> None:
        """`log_id`: the identity of the log, which a worker that draws has read."""
        self._ledger = ledger
        self._log = log
        self._log_id = log_id
        self._clock = clock
        self._random_bytes = random_bytes
        self._asked_clock_s = float("-inf")  # boot time

    async def look(self) -> DeskSeen:
        """See Desk. The bound of pruning is that of this ledger, which is what this replica's front ends read."""
        progress = await self._ledger.reached(BEGIN)
        return DeskSeen(await self._wall_us(), progress.position, progress.ledger_end, progress.pruned_to)

    async def draw(self) -> Drawn:
        """See Desk."""
        number = await draw_range(self._log, self._random_bytes)
        return Drawn(number, THE_LOG)

    async def _wall_us(self) -> int | None:
        """The clock that a majority of the log's servers agrees on, now and then; None: not asked, or not known."""
        now_s = self._clock.boottime_s()
        if not isinstance(self._log, ClockedLog) or now_s - self._asked_clock_s < CLOCK_EVERY_S:
            return None
        self._asked_clock_s = now_s
        return await self._log.agreed_wall_us()


async def draw_range(words: WordsLog, random_bytes: Callable[[int], bytes]) -> int:
    """A draw that nobody else has and will have, counted from 1. Raises LogUnavailable, then it may be lost; and
    StoreMismatch."""
    mark = random_bytes(_MARK_BYTES).hex()
    _, said = await replace(words, NUMBERS, lambda value: drawn(value, mark))
    return draws_in(said)
