"""What a mark and the log together mean. Pure.

A mark of this replica, of the published position or of the archive was made from this log by parts that are trusted:
where the log contradicts it, records are gone, and the replica ends. A mark of a peer is a claim of somebody else. It
stops this replica only where the log has the barrier under which the mark was made: then the peer did read this log.
Otherwise the peer is foreign, such as one with a cloned disk, and must not stop the others.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

import msgspec

from replica.notary.errors import Code, LogRefused, LogTruncated
from replica.notary.position import Position


class Origin(StrEnum):
    """Whose mark it is."""

    OWN = "own"
    PUBLISHED = "published"
    ARCHIVED = "archived"
    PEER = "peer"


_WHERE = {
    Origin.OWN: "this replica's seen file",
    Origin.PUBLISHED: "the published position",
    Origin.ARCHIVED: "the archive's manifest",
    Origin.PEER: "a peer",
}


class Claim(msgspec.Struct, frozen=True):
    """A mark and whose it is. `peer`: the replica that tells it."""

    mark: Position
    origin: Origin
    peer: str = ""

    @property
    def where(self) -> str:
        """Who says it, in words."""
        return self.peer or _WHERE[self.origin]


class Found(msgspec.Struct, frozen=True):
    """What the log has, asked after the mark was read.

    log_id: its identity. end: the offset after its newest record, by a majority of its servers. digest: of the record
    at the mark's offset, None where there is none. declared_lost: that is a lost record of a salvage that this replica
    holds. has_barrier: at the mark's barrier offset is the mark's barrier.
    """

    log_id: str
    end: int
    digest: bytes | None
    declared_lost: bool
    has_barrier: bool


class Meaning(StrEnum):
    """What a mark means for this replica."""

    HOLDS = "holds"
    OTHER_LOG = "other_log"  # it says nothing of this log
    ENDS_BEFORE = "ends_before"
    ANOTHER_RECORD = "another_record"
    FOREIGN = "foreign"  # the log contradicts it, but nothing shows that it was made from this log


CONTRADICTED: Collection[Meaning] = (Meaning.ENDS_BEFORE, Meaning.ANOTHER_RECORD)

RECORDS_LOST: Collection[Code] = (Code.LOG_TRUNCATED, Code.LOG_MISMATCH)
"""The codes of a log that contradicts a mark, or what was read from it before."""


def meaning(claim: Claim, found: Found) -> Meaning:
    """What the mark means, given what the log has."""
    mark = claim.mark
    if mark.topic_id != found.log_id:
        return Meaning.OTHER_LOG
    if found.end > mark.offset and (found.digest == mark.digest or found.declared_lost):
        return Meaning.HOLDS
    if claim.origin is Origin.PEER and not found.has_barrier:
        return Meaning.FOREIGN
    return Meaning.ENDS_BEFORE if found.end <= mark.offset else Meaning.ANOTHER_RECORD


def contradiction(claim: Claim, found: Found, means: Meaning) -> LogRefused:
    """The error of a log that contradicts a mark."""
    mark = f"{claim.where} says that the log was read to offset {claim.mark.offset}"
    if means is Meaning.ENDS_BEFORE:
        return LogTruncated(f"{mark}, and it ends at {found.end}")
    return LogRefused(f"{mark}, and it has another record there", Code.LOG_MISMATCH)
