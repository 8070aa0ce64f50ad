"""A node's log as it was opened: verified, with what the core needs of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ha.raft.core import LogIncomplete
from ha.raft.messages import Entry, Kind, NodeId
from replica.log.raft.files import Files
from replica.log.raft.records import Walk
from replica.log.raft.segments import SEGMENT_BYTES, SegmentLog
from replica.log.raft.signing import LogDiffers, SignedLog
from replica.log.raft.words import KeptWords

_OPAQUE = (Kind.RAW, Kind.WORD)  # the core knows nothing of them but their places


class Shape:
    """The entries that `Raft.restored` needs: no memory for records, nor for most signatures.

    Of committed signatures in a row the first and the last are enough: nothing before the last is ever cut or voted on.
    """

    def __init__(self) -> None:
        self._kept: list[Entry] = []
        self._last: Entry | None = None

    def __iter__(self) -> Iterator[Entry]:
        yield from self._kept
        if self._last is not None and self._last.idx > self._kept[-1].idx:
            yield self._last

    def add(self, entries: Iterable[Entry], commit_idx: int) -> None:
        """Add the next entries; those up to `commit_idx` are known to be committed."""
        kept = self._kept
        for entry in entries:
            if self._last is not None and entry.idx <= self._last.idx:
                continue
            self._last = entry
            if entry.kind in _OPAQUE and kept and kept[-1].view == entry.view:
                continue
            if entry.kind is Kind.SIGNATURE and entry.idx <= commit_idx and _follow(kept[-2:], entry):
                kept.pop()
            kept.append(entry)

    def add_walk(self, walk: Walk, first_idx: int) -> None:
        """Add the entries of a sealed file, from `first_idx` on."""
        last = Entry(walk.view, walk.next_idx - 1)
        self.add([*(each for each in walk.marks if each.idx >= first_idx), last], last.idx)


def _follow(two: list[Entry], entry: Entry) -> bool:
    return len(two) == 2 and all((each.kind, each.view) == (Kind.SIGNATURE, entry.view) for each in two)


@dataclass(slots=True)
class Opened:
    """The log of one node, as its core and its driver begin with it."""

    node_id: NodeId
    log: SegmentLog
    signed: SignedLog
    shape: Shape
    words: KeptWords


class Opening:
    """Opens a node's log and verifies it: sealed files as they are read, what follows entry by entry.

    A sealed file costs a quarter of what its entries would one by one.
    """

    def __init__(
        self, group: str, node_id: NodeId, key: bytes, files: Files, segment_bytes: int = SEGMENT_BYTES
    ) -> None:
        """`key`: seed of the node's Ed25519 key. Raises LogIncomplete if the disk has another log than was signed, or
        less than was synced. Then `log.damaged` has what must be repaired before `finished`."""
        self._node_id = node_id
        self._signed = SignedLog(group, node_id, key)
        self._shape = Shape()
        self._words = KeptWords()
        try:
            self.log = SegmentLog(files, segment_bytes, self._take)
        except LogDiffers as error:
            raise _differs(error) from None

    def _take(self, walk: Walk) -> None:
        """Entries of a sealed file, all of them committed, if they are the next ones. Raises LogDiffers."""
        first_idx = self._signed.last_idx + 1
        if walk.header.first_idx != first_idx:
            return
        self._signed.extend(walk.leaves, walk.marks)
        self._signed.committed(walk.next_idx - 1)
        self._shape.add_walk(walk, first_idx)
        self._words.add_walk(walk, first_idx)

    def finished(self) -> Opened:
        """Verify what no sealed file had, or came after one that was damaged. Raises LogIncomplete."""
        log, signed, shape = self.log, self._signed, self._shape
        commit_idx = log.hard_state.commit_idx
        try:
            signed.extended()
            shape.add(self._words.opened(signed.opened(log.entries(signed.last_idx + 1), commit_idx)), commit_idx)
        except LogDiffers as error:
            raise _differs(error) from None
        self._words.committed(commit_idx)
        return Opened(self._node_id, log, signed, shape, self._words)


def _differs(error: LogDiffers) -> LogIncomplete:
    return LogIncomplete(f"the disk has another log than was signed: {error.detail}")
