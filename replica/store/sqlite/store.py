"""The participant store of an activation whose replica derives its own ledger: it waits for it, and writes nothing.

The log decides about commands and about the activation in force, so there is nothing that only the active could write,
not even the grant of an epoch. Every replica's ledger follows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from replica.notary.errors import InvariantBroken
from replica.notary.formats import Formats
from replica.notary.marks import ContradictedMark
from replica.notary.position import BEGIN, Position
from replica.store.interface import Pruned, Published, Row
from replica.store.schema import check_bound


class Ledger(Protocol):
    """A ledger that others write, in one file or in several, one after the other. Raises StoreUnavailable."""

    async def reached(self, offset: int) -> Published:
        """The progress once the ledger covers the log up to that offset."""

    async def prune(self, up_to: int | None, recorded_before_us: int) -> Pruned:
        """See ParticipantStore."""


class EmbeddedStore:
    """See ParticipantStore."""

    def __init__(
        self, ledger: Ledger, topic_id: str, formats: Formats, note_end: Callable[[int, str], None] | None = None
    ) -> None:
        """`formats`: what operators have raised. `note_end` takes an epoch and why it ended, and records it later."""
        self._note_end = note_end
        self._ledger = ledger
        self._topic_id = topic_id
        self._formats = formats
        self._was_asked = False  # what is published

    async def bind(self, topic_id: str, salvages: Collection[str] = ()) -> Formats:
        """See ParticipantStore."""
        check_bound(self._topic_id, topic_id, salvages)
        return self._formats

    async def raise_epoch(self, above: int, replica: str) -> int:
        """The epoch that the barrier claims; it is in force only if no other claim was first in the log."""
        return above + 1

    async def service_paused(self) -> bool:
        """See ParticipantStore. Never: a lease's claim is the barrier, and a release would end the lease."""
        return False

    async def contradicted_marks(self) -> list[ContradictedMark]:
        """See ParticipantStore. None: its replicas share no database."""
        return []

    async def end_epoch(self, epoch: int, replica: str, reason: str) -> None:
        """See ParticipantStore. It is recorded in the background: the session writes nothing."""
        if self._note_end is not None:
            self._note_end(epoch, reason)

    async def published(self) -> Published:
        """See ParticipantStore. The ledger may be further than what was published: it waits for nobody."""
        self._was_asked = True
        return await self._ledger.reached(BEGIN)

    async def publish(self, completions: Sequence[Row], position: Position) -> int:
        """Return once the ledger has these completions: it follows the same log. Raises InvariantBroken if not."""
        if not self._was_asked:
            raise InvariantBroken("where the ledger ended before was not asked")
        progress = await self._ledger.reached(position.offset)
        if position.ledger_offset > progress.ledger_end:
            raise InvariantBroken(
                f"ledger offset {position.ledger_offset} is not here: the ledger ends at {progress.ledger_end}"
            )
        return progress.pruned_to

    async def prune(self, up_to: int | None, recorded_before_us: int) -> Pruned:
        """See ParticipantStore. Of this replica's ledger; the others follow the bound that operators say in the log."""
        return await self._ledger.prune(up_to, recorded_before_us)
