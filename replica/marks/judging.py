"""What a mark and the log together mean. Pure.

A mark of this replica, of the published position or of the archive was made from this log by parts that are trusted:
where the log contradicts it, records are gone, and the replica ends. A mark of a peer is a claim of somebody else. It
stops this replica only where the log has the barrier under which the mark was made: then the peer did read this log.
Otherwise the peer is foreign, such as one with a cloned disk, and must not stop the others.

Nor must a peer whose own position is damaged. That this replica has read what the log has there proves nothing: it may
have read it after the cut, in the log that grew again. Two things do, each about time (`is_refuted`):
  - The peer told earlier that it had read so far or further, and the log has the record that it named then.
  - The peer told earlier that it had not come so far, and this replica has read the offset with one reader from before
    that. A reader ends where a log was cut (at another leader, with its connection). So had the log been cut between,
    the record here would be older than the cut, and lost with it.
Both need that the peer tells a position of its own disk. What it passes on is of somebody who may have read earlier.
Two peers whose own positions are contradicted are believed in any case, also where the cut took their barriers: one
disk may be damaged or cloned, two at once are not.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

import msgspec

from replica.notary.codes import Code
from replica.notary.errors import LogRefused, LogTruncated
from replica.notary.position import BEGIN, Position


class Origin(StrEnum):
    """Whose mark it is."""

    OWN = "own"
    LEFT = "left"  # by an earlier start of this replica, which had it from somebody else
    PUBLISHED = "published"
    ARCHIVED = "archived"
    PEER = "peer"


_WHERE = {
    Origin.OWN: "this replica's seen file",
    Origin.LEFT: "this replica's seen file",
    Origin.PUBLISHED: "the published position",
    Origin.ARCHIVED: "the archive's manifest",
    Origin.PEER: "a peer",
}


class Witness(msgspec.Struct, frozen=True):
    """What this replica knows of a peer's reading, before it told a contradiction.

    words: positions that it told. told: the offset of the last one. read_to: the newest offset that this replica has
    read with the reader that it had before it asked for that word.
    """

    words: tuple[Position, ...] = ()
    told: int = BEGIN
    read_to: int = BEGIN


NO_WITNESS = Witness()


class Claim(msgspec.Struct, frozen=True):
    """A mark and whose it is. `peer`: the replica that tells it. Of a peer's position on its own disk only: `witness`,
    what may speak against it, and `seconded`, another peer ends by its own position as well."""

    mark: Position
    origin: Origin
    peer: str = ""
    witness: Witness = NO_WITNESS
    seconded: bool = False

    @property
    def where(self) -> str:
        """Who says it, in words."""
        return self.peer or _WHERE[self.origin]


class Found(msgspec.Struct, frozen=True):
    """What the log has, asked after the mark was read.

    log_id: its identity. end: the offset after its newest record, by a majority of its servers. digest: of the record
    at the mark's offset, None where there is none. declared_lost: that is a lost record of a salvage that this replica
    holds. has_barrier: at the mark's barrier offset is the mark's barrier. words_to: the newest offset of the witness'
    words that the log has.
    """

    log_id: str
    end: int
    digest: bytes | None
    declared_lost: bool
    has_barrier: bool
    words_to: int = BEGIN


class Meaning(StrEnum):
    """What a mark means for this replica."""

    HOLDS = "holds"
    OTHER_LOG = "other_log"  # it says nothing of this log
    ENDS_BEFORE = "ends_before"
    ANOTHER_RECORD = "another_record"
    FOREIGN = "foreign"  # the log contradicts it, but nothing shows that it was made from this log
    REFUTED = "refuted"  # a peer's position is damaged: the log was not cut since it was well


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
    if claim.origin is Origin.PEER and not claim.seconded:
        if not found.has_barrier:
            return Meaning.FOREIGN
        if is_refuted(claim, found):
            return Meaning.REFUTED
    return Meaning.ENDS_BEFORE if found.end <= mark.offset else Meaning.ANOTHER_RECORD


def is_refuted(claim: Claim, found: Found) -> bool:
    """Whether the log had the record that it has now when the peer can first have read another one there."""
    at, witness = claim.mark.offset, claim.witness
    return found.digest is not None and (at <= found.words_to or witness.told < at <= witness.read_to)


def contradiction(claim: Claim, found: Found, means: Meaning) -> LogRefused:
    """The error of a log that contradicts a mark."""
    mark = f"{claim.where} says that the log was read to offset {claim.mark.offset}"
    if means is Meaning.ENDS_BEFORE:
        return LogTruncated(f"{mark}, and it ends at {found.end}")
    return LogRefused(f"{mark}, and it has another record there", Code.LOG_MISMATCH)
