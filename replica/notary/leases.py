"""What a barrier says of a lease over the log: a claim with its witness, or a release. Pure.

Leadership by a lease (`election.kind = "lease"`) has no lock server: the log is it. The barrier that opens an
activation is the claim to the lease. Its database text names the newest record of the holder that the claimant had
read. A holder that wrote after that lives, and keeps the lease. Texts of any other form are those of databases.

Where every replica serves, others write under the holder's activation as well. Their sequence numbers lie between
those of the holder, which begin with 0, and its signs of life. So a dead holder does not live on in what others write.
"""

from __future__ import annotations

import re

from replica.notary.records import BarrierRecord

CLAIM = "lease"
RELEASE = "release"
NOTHING_WITNESSED = -1  # the first claim to an empty log; barriers of no lease
OTHERS_FROM = 2**40  # sequence numbers below are of the lease's holder: its notes and, alone, its requests
SIGNS_OF_LIFE_FROM = 2**62  # and so are these: a range of their own, above all that replicas are given
_CLAIM = re.compile(r"lease:.+:(-1|0|[1-9][0-9]{0,18})", re.ASCII | re.DOTALL)
_PAUSE = re.compile(r"release:([^:]+:[^:]+:[0-9]+):[^:]*", re.ASCII)


def claim_text(log_id: str, witnessed: int) -> str:
    """The database text of a claim. `witnessed`: log offset of the holder's newest record that counts, as read."""
    return f"{CLAIM}:{log_id}:{witnessed}"


def release_text(log_id: str, by: str) -> str:
    """The database text of a release. `by`: the replica that gives the lease up; empty: the lease was taken from it."""
    return f"{RELEASE}:{log_id}:{by}"


def granter_of(log_id: str) -> str:
    """What grants the leases over a log, as ranges of sequence numbers name it."""
    return f"{CLAIM}:{log_id}"


def granter_in(text: str) -> str:
    """What granted the epoch of a barrier with this text: a database, or the log whose lease was claimed. Claims to one
    log differ in their witness only."""
    return text if witness_in(text) is None else text.rpartition(":")[0]


def witness_in(text: str) -> int | None:
    """The witnessed offset in the text of a claim; None: the text is not that of a claim."""
    found = _CLAIM.fullmatch(text)
    return None if found is None else int(found[1])


def releaser_in(text: str) -> str | None:
    """Who gave the lease up, in the text of a release; None: the text is not that of a release."""
    head, _, by = text.rpartition(":")
    return by if head.startswith(f"{RELEASE}:") else None


def pauser_in(text: str) -> str | None:
    """The database that granted the epoch of a barrier with this text, if that barrier pauses service; else None.

    It is a release by a replica whose lock is a database's. The id of a log is no name of a database.
    """
    found = _PAUSE.fullmatch(text)
    return None if found is None else found[1]


def database_in(text: str) -> str:
    """The database that the text of a barrier names, whether it pauses service or not; any other text as it is."""
    return pauser_in(text) or text


def shows_life(sequence: int) -> bool:
    """Whether a counting record with this sequence number was written by the holder of the lease."""
    return sequence < OTHERS_FROM or sequence >= SIGNS_OF_LIFE_FROM


def is_leased(barrier: BarrierRecord | None) -> bool:
    """Whether the activation of a barrier holds a lease that readers defend against claims that come too late."""
    return barrier is not None and witness_in(barrier.database) is not None
