"""One bound of pruning for all replicas' own ledgers: followed once the ledger covers it, and never lowered."""

from __future__ import annotations

from replica.active.shared_bound import SharedBound
from replica.notary.words import NewWord
from replica.store.interface import Published
from replica.store.words import PRUNED, Bound, bound_in, raised, written
from tests.unit.store.test_ledger_board import WordsHere


class OwnLedger:
    """A ledger of which one reads the progress, and that may be pruned."""

    def __init__(self) -> None:
        self.progress = Published(None, 0, 0)
        self.pruned: list[int] = []

    async def reached(self, offset: int) -> Published:
        return self.progress

    async def prune_to(self, bound: int) -> None:
        self.pruned.append(bound)
        self.progress = Published(None, self.progress.ledger_end, bound)


async def test_a_ledger_follows_the_bound_once_it_covers_it() -> None:
    """Goal: a ledger that lags or is made anew is pruned later, and none twice. Method: a bound above its end; it
    catches up; the bound rises; it is made anew."""
    log, ledger = WordsHere(), OwnLedger()
    bound = SharedBound(log, ledger, ledger.prune_to, clock=None)  # type: ignore[arg-type]
    await bound.look()
    await log.say(NewWord(PRUNED, 0, written(Bound(7))))
    ledger.progress = Published(None, 6, 0)
    await bound.look()
    assert ledger.pruned == []
    ledger.progress = Published(None, 9, 0)
    await bound.look()
    await bound.look()
    assert ledger.pruned == [7]
    await log.say(NewWord(PRUNED, 1, written(Bound(9))))
    await bound.look()
    ledger.progress = Published(None, 12, 0)
    await bound.look()
    assert ledger.pruned == [7, 9, 9]


def test_the_bound_never_falls() -> None:
    """Goal: what is gone in one ledger is not promised by another. Method: a lower bound after a higher one."""
    first = raised(b"", 5)
    assert (bound_in(b""), bound_in(first), raised(first, 4), raised(first, 5)) == (0, 5, first, first)
    assert bound_in(raised(first, 6)) == 6
