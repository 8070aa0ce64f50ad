"""One bound of pruning for replicas that share no database: each lets go in its own ledger what operators named.

Ledger offsets are the same in all ledgers, so they stay equal above the bound. A ledger that lags, or is made anew, is
pruned once it covers the bound.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

from ha.clock import Clock
from ha.errors import HaError
from replica.notary.errors import NotaryError
from replica.notary.position import BEGIN
from replica.notary.words import WordsLog, value_of
from replica.store.interface import Published
from replica.store.words import PRUNED, bound_in

LOOK_EVERY_S = 2.0


class Ledger(Protocol):
    """The replica's own."""

    async def reached(self, offset: int) -> Published:
        """The progress once it covers the log up to that offset. Raises StoreUnavailable."""


class SharedBound:
    """Follows the bound that is said in the log, from `run` until that is cancelled."""

    def __init__(
        self, words: WordsLog, ledger: Ledger, prune_to: Callable[[int], Awaitable[None]], clock: Clock
    ) -> None:
        """`prune_to` lets all up to a ledger offset go. It may raise NotaryError and HaError, and is tried again."""
        self._words = words
        self._ledger = ledger
        self._prune_to = prune_to
        self._clock = clock

    async def run(self) -> None:
        """Look every `LOOK_EVERY_S`. The log may be away, which others report: nothing waits for this."""
        while True:
            with suppress(NotaryError, HaError):
                await self.look()
            await self._clock.sleep_s(LOOK_EVERY_S)

    async def look(self) -> None:
        """Prune what may go by now. Raises NotaryError and HaError."""
        bound = bound_in(await value_of(self._words, PRUNED))
        progress = await self._ledger.reached(BEGIN)
        if progress.pruned_to < bound <= progress.ledger_end:
            await self._prune_to(bound)
