"""What a notary worker asks of the shared database, on a connection of its own, or of the log where the replicas share
none (docs/decisions/0021-workers.md)."""

from __future__ import annotations

from typing import Protocol

import msgspec

from replica.notary.position import BEGIN, Position


class DeskSeen(msgspec.Struct, frozen=True):
    """What the database shows: its clock, microseconds UTC (None: it was not asked this time); how far completions are
    published, as the position in the log (None: none is) and in the ledger; up to which ledger offset they may be gone.
    """

    wall_us: int | None
    published: Position | None
    ledger_end: int
    pruned_to: int

    @property
    def published_offset(self) -> int:
        """The log offset up to which completions are published; -1: none is."""
        return BEGIN if self.published is None else self.published.offset


class Drawn(msgspec.Struct, frozen=True):
    """A draw of sequence numbers, counted from 1, and what counted them, named as what granted a barrier."""

    number: int
    database: str


class Desk(Protocol):
    """One connection, never the lock's. Every method raises StoreUnavailable and StoreMismatch."""

    async def look(self) -> DeskSeen:
        """What the database shows now."""

    async def draw(self) -> Drawn:
        """A draw that this database gave nobody else and will give nobody else. Durable on return. Raises
        StoreUnavailable as well where the database takes no writes."""
