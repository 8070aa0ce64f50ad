"""Marks: whole positions that show how far a log went. A log is compared with them before anything is written to it.

A log's length proves nothing: one that was cut grows again. So a mark has the digest of the record at its offset, and
the barrier in force there with its offset. It carries no sequence numbers, which may be many.
"""

from __future__ import annotations

from typing import Annotated, Protocol

import msgspec

from replica.notary.errors import BadRequest, FormatUnknown
from replica.notary.position import BEGIN, Position, decode_position, encode_position
from replica.notary.requests import DIGEST_BYTES

MARK_MAX_BYTES = 2_600  # a barrier has two texts of 255 characters, a log's id has at most LOG_ID_MAX
LOG_ID_MAX = 255
PEERS_MAX = 64  # replicas whose marks are kept
NAME_MAX = 255
OFFSET_MAX = 2**63 - 1

MarkText = Annotated[str, msgspec.Meta(max_length=2 * MARK_MAX_BYTES)]
"""A mark in a document: its bytes in hexadecimal, empty for none."""
MarkTexts = Annotated[
    dict[Annotated[str, msgspec.Meta(max_length=NAME_MAX)], MarkText], msgspec.Meta(max_length=PEERS_MAX)
]


class MarksTold(msgspec.Struct, frozen=True, kw_only=True):
    """What a replica says of marks in its health document, to its peers.

    applied: its own position. synced: what its seen file has on the disk, by the name of the replica whose mark it is.
    contradicted: a mark that its log contradicts; it ends. contradicted_own: that is a position on its own disk.
    """

    applied: MarkText = ""
    synced: MarkTexts = {}
    contradicted: MarkText = ""
    contradicted_own: bool = False


NOTHING_TOLD = MarksTold()


class ContradictedMark(msgspec.Struct, frozen=True):
    """The mark with which a replica ended, because its log contradicts it, as it stands in the shared database for
    peers that did not ask it in time. `own_disk`: a position on its own disk."""

    replica: str
    mark: bytes
    own_disk: bool


class ContradictedMarks(Protocol):
    """The contradicted marks in the shared database, one a replica. Where replicas share none there are never any: then
    peers' health documents and seen files are all there is. Every method raises StoreUnavailable and StoreMismatch."""

    async def contradicted_marks(self) -> list[ContradictedMark]:
        """By replica; PEERS_MAX of them at most."""

    async def leave_mark(self, left: ContradictedMark) -> None:
        """Replace the one of its replica. It is durable on return."""

    async def take_mark_away(self, left: ContradictedMark) -> None:
        """Delete it, unless its replica has left another one since."""


def mark_of(position: Position) -> Position:
    """A position as a mark."""
    return msgspec.structs.replace(position, seen=())


def mark_text(mark: Position | None) -> str:
    """A mark as it stands in a document."""
    return "" if mark is None else encode_position(mark_of(mark)).hex()


def read_mark(text: str) -> Position | None:
    """The mark in a document of another replica; None for none. Raises BadRequest for what no replica says."""
    if not text:
        return None
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raise BadRequest("a mark is not in hexadecimal") from None
    return decode_mark(raw)


def decode_mark(raw: bytes) -> Position:
    """A mark that comes from a file or from another replica. Raises BadRequest for what no replica writes."""
    if len(raw) > MARK_MAX_BYTES:
        raise BadRequest(f"a mark has {len(raw)} bytes")
    try:
        mark = decode_position(raw)
    except FormatUnknown as error:
        raise BadRequest(error.detail) from None
    sound = (
        0 < len(mark.topic_id) <= LOG_ID_MAX
        and 0 <= mark.offset <= OFFSET_MAX
        and len(mark.digest) == DIGEST_BYTES
        and BEGIN <= mark.barrier_offset <= mark.counted_offset <= mark.offset
        and (mark.barrier is None) == (mark.barrier_offset == BEGIN)
        and not mark.seen
    )
    if not sound:
        raise BadRequest("a mark says what no position can")
    return mark
