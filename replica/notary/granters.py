"""Who granted the epoch of a barrier: a database or the log itself, and what the barrier does to a lease or to service.

Leadership by a lease (`election.kind = "lease"`) has no lock server: the log is it. The barrier that opens an
activation is the claim to the lease. It names the newest record of the holder that the claimant had read. A holder
that wrote after that lives, and keeps the lease.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

NOTHING_WITNESSED = -1  # the first claim to an empty log
NAME_MAX = 255
THE_LOG = "lease"  # grants the epochs of claims and releases
FIRST_LATER = 4  # the tag from which on granters are those of later formats

Name = Annotated[str, msgspec.Meta(max_length=NAME_MAX, pattern=r"\A[!-~]*\Z")]
"""Visible ASCII characters, or none."""
Timeline = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Witnessed = Annotated[int, msgspec.Meta(ge=NOTHING_WITNESSED, le=2**63 - 1)]


class Database(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=0):
    """A database cluster, and which line of its history."""

    kind: Name  # "postgres" or "oracle"
    system: Name
    timeline: Timeline

    def __str__(self) -> str:
        """As documents and a log in a database name it."""
        return f"{self.kind}:{self.system}:{self.timeline}"


class Claim(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=1):
    """A claim to the lease over the log. `witnessed`: log offset of the holder's newest record that counts, as read."""

    witnessed: Witnessed

    def __str__(self) -> str:
        """For people."""
        return f"{THE_LOG}:{self.witnessed}"


class Release(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=2):
    """The lease was given up by that replica; empty: it was taken from its holder. Nobody leads."""

    by: Name

    def __str__(self) -> str:
        """For people."""
        return f"release:{self.by}"


class Pause(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=3):
    """Service is paused, as that replica wrote under the lock of this database. Nobody leads."""

    kind: Name
    system: Name
    timeline: Timeline
    by: Name

    def __str__(self) -> str:
        """For people."""
        return f"pause:{self.database}:{self.by}"

    @property
    def database(self) -> Database:
        """The one that granted the epoch."""
        return Database(self.kind, self.system, self.timeline)


class LaterGranter(msgspec.Struct, frozen=True):
    """What only a later format knows. It is in no barrier that comes into force here."""


Granter = Database | Claim | Release | Pause


def database_of(granter: Granter) -> Database | None:
    """The database that granted the epoch, whether the barrier pauses service or not; None: the log did."""
    if isinstance(granter, Pause):
        return granter.database
    return granter if isinstance(granter, Database) else None


def grants_as(granter: Granter) -> str:
    """What granted the epoch, as ranges of sequence numbers and documents name it."""
    return str(database_of(granter) or THE_LOG)


def opens_nothing(granter: Granter) -> bool:
    """Whether nobody may write under the activation of this barrier."""
    return isinstance(granter, Release | Pause)
