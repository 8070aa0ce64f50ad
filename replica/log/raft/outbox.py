"""Decisions about memory and order between the core and disk, links and clients. Pure.

`Outbox` holds messages back until the disk has what they promise. `Recent` keeps the newest entries. `Calls` has the
calls that clients wait for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from ha.raft.messages import Entry, NodeId, Outgoing
from replica.log.raft.wire import size_of

CallT = TypeVar("CallT")
_CHUNK_ENTRIES = 64  # so many leave memory together
HELD_MAX = 10_000  # messages to one node that wait for the disk


class Outbox:
    """Messages, each with the number of the disk's job that must be done before it is sent.

    To one node they leave in the order in which the core gave them: nothing overtakes what waits.
    """

    def __init__(self) -> None:
        self._held: dict[NodeId, deque[tuple[int, Outgoing]]] = {}
        self._done = 0

    def put(self, out: Outgoing, need: int) -> bool:
        """Whether to send the message now; otherwise it is held."""
        if need <= self._done and out.to not in self._held:
            return True
        queue = self._held.setdefault(out.to, deque())
        if len(queue) < HELD_MAX:  # the core tolerates lost messages; a disk that hangs would hold more and more
            queue.append((need, out))
        return False

    def done(self, job: int) -> list[Outgoing]:
        """All jobs up to this one are done: what may be sent now, in order."""
        self._done = job
        ready: list[Outgoing] = []
        for to, queue in list(self._held.items()):
            while queue and queue[0][0] <= job:
                ready.append(queue.popleft()[1])
            if not queue:
                del self._held[to]
        return ready


class Recent:
    """The newest entries, in memory: all that are not written yet, and some bytes of those that are."""

    def __init__(self, next_idx: int, max_bytes: int) -> None:
        self.first_idx = next_idx
        self._entries: list[Entry] = []
        self._bytes = 0
        self._max_bytes = max_bytes

    def append(self, entries: Sequence[Entry]) -> None:
        """Add entries at the end of the log."""
        self._entries += entries
        self._bytes += size_of(entries)

    def cut(self, idx: int) -> None:
        """Entries above `idx` are gone."""
        keep = max(idx + 1 - self.first_idx, 0)
        self._bytes -= size_of(self._entries[keep:])
        del self._entries[keep:]
        self.first_idx = min(self.first_idx, idx + 1)

    def written(self, idx: int) -> None:
        """All up to `idx` is on disk: drop the older half of that if memory is over its bound."""
        if self._bytes <= self._max_bytes:
            return
        may_go = min(idx + 1 - self.first_idx, len(self._entries))
        gone, size = 0, 0
        while gone < may_go and self._bytes - size > self._max_bytes // 2:
            chunk = self._entries[gone : min(gone + _CHUNK_ENTRIES, may_go)]
            size += size_of(chunk)
            gone += len(chunk)
        del self._entries[:gone]
        self.first_idx += gone
        self._bytes -= size

    def read(self, first: int, last: int) -> list[Entry]:
        """The entries first..last, as far as they are there; `first` must not be below `first_idx`."""
        return self._entries[first - self.first_idx : max(last + 1 - self.first_idx, 0)]


@dataclass(frozen=True, slots=True)
class _Round(Generic[CallT]):
    view: int
    number: int
    commit_idx: int
    calls: list[CallT]


class Questions(Generic[CallT]):
    """Open questions about the log's end. One round answers all that were asked before it began."""

    def __init__(self) -> None:
        self._new: list[CallT] = []
        self._rounds: deque[_Round[CallT]] = deque()
        self._open = 0

    def __len__(self) -> int:
        return self._open

    @property
    def wait(self) -> bool:
        """Whether questions wait for a round to begin."""
        return bool(self._new)

    def add(self, call: CallT) -> None:
        """Add a question."""
        self._open += 1
        self._new.append(call)

    def begin(self, view: int, number: int, commit_idx: int) -> None:
        """A round begins for all waiting questions; `commit_idx` is the leader's now."""
        self._rounds.append(_Round(view, number, commit_idx, self._new))
        self._new = []

    def settle(self, leads_view: int | None, answered: int, readable_idx: int) -> list[tuple[CallT, int | None]]:
        """Who can be answered: with the index, or with None where this node no longer leads the view of the round.

        `leads_view` None: it does not lead, so no question needs to wait. An index is sent once it can be read.
        """
        settled: list[tuple[CallT, int | None]] = []
        while self._rounds:
            head = self._rounds[0]
            lost = head.view != leads_view
            if not lost and (head.number > answered or head.commit_idx > readable_idx):
                break
            settled += [(call, None if lost else head.commit_idx) for call in head.calls]
            self._rounds.popleft()
        if leads_view is None:
            settled += [(call, None) for call in self._new]
            self._new = []
        self._open -= len(settled)
        return settled


@dataclass(frozen=True, slots=True)
class Waiting(Generic[CallT]):
    """A call whose entries are in the log, from `first_idx` to `last_idx`, all of one view."""

    call: CallT
    view: int
    first_idx: int
    last_idx: int
    size: int  # bytes


class Calls(Generic[CallT]):
    """Calls, until it is final whether their entries count.

    Entries that were cut here may be on another node, which may still lead and commit them. They can never be committed
    once an entry of a later view is committed, or another entry in their place.
    """

    def __init__(self) -> None:
        self._waiting: deque[Waiting[CallT]] = deque()

    def add(self, waiting: Waiting[CallT]) -> None:
        """Views never fall, nor indices within one."""
        self._waiting.append(waiting)

    def settle(self, commit_idx: int, view_of: Callable[[int], int]) -> list[tuple[Waiting[CallT], bool]]:
        """All up to `commit_idx` is committed: the calls that are final now, and whether their entries count."""
        settled: list[tuple[Waiting[CallT], bool]] = []
        while self._waiting:
            head = self._waiting[0]
            if head.last_idx > commit_idx and view_of(commit_idx) <= head.view:
                break
            counts = head.last_idx <= commit_idx and view_of(head.last_idx) == head.view
            settled.append((self._waiting.popleft(), counts))
        return settled
