"""A node's log as it was opened: verified, with what the core needs of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Self

from ha.raft.core import LogIncomplete
from ha.raft.messages import Entry, Kind, NodeId
from replica.log.raft.segments import SegmentLog
from replica.log.raft.signing import LogDiffers, SignedLog


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
            if entry.kind is Kind.RAW and kept and kept[-1].view == entry.view:
                continue
            if entry.kind is Kind.SIGNATURE and entry.idx <= commit_idx and _follow(kept[-2:], entry):
                kept.pop()
            kept.append(entry)


def _follow(two: list[Entry], entry: Entry) -> bool:
    return len(two) == 2 and all((each.kind, each.view) == (Kind.SIGNATURE, entry.view) for each in two)


@dataclass(slots=True)
class Opened:
    """The log of one node, as its core and its driver begin with it."""

    node_id: NodeId
    log: SegmentLog
    signed: SignedLog
    shape: Shape

    @classmethod
    def of(cls, group: str, node_id: NodeId, log: SegmentLog, key: bytes) -> Self:
        """Verify a whole log. `key`: seed of the node's Ed25519 key. Raises LogIncomplete if it is not what was
        signed."""
        signed, shape, commit_idx = SignedLog(group, node_id, key), Shape(), log.hard_state.commit_idx
        try:
            shape.add(signed.opened(log.entries(), commit_idx), commit_idx)
        except LogDiffers as error:
            raise LogIncomplete(f"the disk has another log than was signed: {error.detail}") from None
        return cls(node_id, log, signed, shape)
