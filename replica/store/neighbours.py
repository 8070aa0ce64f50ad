"""Judges what else uses the participant's database: sessions with a replica's name, and other ledgers' tables.

Two replicas of one name would each take the other's lock for its own. A search path that leads to two ledgers does not
determine ours. In both cases a replica must not start. A login that may only connect, or create a schema, stops no
replica: a session whose login may not write the ledger is no replica, whatever its name, and tables outside the search
path are not ours. People get a warning of both. Nothing is lost either way, because the log decides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from replica.notary.errors import LedgersShareDatabase


class NamedSession(msgspec.Struct, frozen=True):
    """A session with a replica's name. `moved_us`: when its newest statement began or ended, by the server's clock;
    None: hidden from us. `writes`: its login is ours, or may write this ledger."""

    pid: int
    name: str
    user: str
    address: str
    moved_us: int | None
    writes: bool = True

    def __str__(self) -> str:
        return f"session {self.pid} of user {self.user}" + (f" from {self.address}" if self.address else "")


class Ledger(msgspec.Struct, frozen=True):
    """A schema with the tables of a participant. `ours`: the search path leads to it. `on_path`: the search path names
    it, at any place."""

    schema: str
    owner: str
    ours: bool
    on_path: bool = False

    def __str__(self) -> str:
        return f"{self.schema} (of {self.owner})"


class Neighbours(msgspec.Struct, frozen=True):
    """All of them, at one moment."""

    sessions: Sequence[NamedSession] = ()
    ledgers: Sequence[Ledger] = ()

    @property
    def replicas(self) -> list[NamedSession]:
        """Sessions that may be replicas, because their logins have the rights."""
        return [session for session in self.sessions if session.writes]

    @property
    def strangers(self) -> list[NamedSession]:
        """Sessions that have a replica's name but not its rights."""
        return [session for session in self.sessions if not session.writes]

    @property
    def rivals(self) -> list[Ledger]:
        """Other ledgers on our search path. With any of them it is not certain which ledger is ours."""
        return [ledger for ledger in self.ledgers if ledger.on_path and not ledger.ours]

    @property
    def copies(self) -> list[Ledger]:
        """Other ledgers, or copies of this one, where we never look."""
        return [ledger for ledger in self.ledgers if not ledger.on_path and not ledger.ours]


def alive(before: Iterable[NamedSession], after: Iterable[NamedSession]) -> list[NamedSession]:
    """The sessions that worked between two looks. A dead replica's session does not, until the server ends it."""
    earlier = {session.pid: session.moved_us for session in before}
    return [session for session in after if session.pid in earlier and session.moved_us != earlier[session.pid]]


def taken_twice(living: Iterable[NamedSession]) -> dict[str, list[NamedSession]]:
    """The names that several living sessions have, each with these sessions."""
    living = list(living)
    names = Counter(session.name for session in living)
    return {name: [s for s in living if s.name == name] for name, count in names.items() if count > 1}


def check_ledgers(neighbours: Neighbours) -> None:
    """Raises LedgersShareDatabase when our search path leads to more than one ledger."""
    if neighbours.rivals:
        raise LedgersShareDatabase(
            f"the search path leads to another ledger as well, in schema {', '.join(map(str, neighbours.rivals))}: "
            "which one is ours is not certain"
        )
