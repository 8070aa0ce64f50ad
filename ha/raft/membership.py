"""The members: active configurations, and this node's own retirement.

A configuration counts as soon as its entry is in the log, committed or not. Several may be pending. The newest
committed one and all after it are active: votes and commits need a majority in each.

A node that a configuration leaves out retires in phases. It votes, answers and leads until the last one:

    Ordered --its first signature--> Signed --committed--> Completed --RETIRED_COMMITTED committed--> RetiredCommitted

If it left earlier, the other nodes might lack the majority that they need to learn that the removal is committed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from ha.raft.messages import Entry, Kind, NodeId


class Phase(StrEnum):
    """How far a node's retirement is."""

    ORDERED = "Ordered"
    SIGNED = "Signed"
    COMPLETED = "Completed"
    RETIRED_COMMITTED = "RetiredCommitted"


@dataclass(frozen=True, slots=True)
class Configuration:
    """The members from `idx` on."""

    idx: int
    nodes: frozenset[NodeId]


@dataclass(slots=True)
class Retirement:
    """This node's retirement. `idx`: where it was left out; `committable_idx`: the first signature after that, or 0."""

    idx: int
    phase: Phase = Phase.ORDERED
    committable_idx: int = 0


class Membership:
    """The members and retirements that follow from the log's reconfiguration entries, as one node has them."""

    __slots__ = ("_former", "_leaving", "configurations", "node_id", "retired_committed", "retirement")

    def __init__(self, node_id: NodeId) -> None:
        self.node_id = node_id
        self.configurations: list[Configuration] = []  # all are active, oldest first
        self.retirement: Retirement | None = None  # None: Active
        self.retired_committed: set[NodeId] = set()  # consensus does not need them any more: they may be switched off
        self._former: set[NodeId] = set()  # left by a committed configuration
        self._leaving: list[Entry] = []  # RETIRED_COMMITTED entries that are not committed yet

    @property
    def phase(self) -> Phase | None:
        """None: Active."""
        return None if self.retirement is None else self.retirement.phase

    @property
    def is_gone(self) -> bool:
        """Whether this node only answers any more."""
        return self.phase is Phase.RETIRED_COMMITTED

    def active_nodes(self) -> set[NodeId]:
        """All members of any active configuration."""
        return {node for configuration in self.configurations for node in configuration.nodes}

    def in_latest(self) -> bool:
        """Whether this node is a member of the newest configuration."""
        return bool(self.configurations) and self.node_id in self.configurations[-1].nodes

    def append(self, entry: Entry) -> None:
        """Take an entry's effect on the members, as it is appended."""
        if entry.kind is Kind.SIGNATURE:
            self._sign(entry.idx)
        elif entry.kind is Kind.RECONFIGURATION:
            self._reconfigure(Configuration(entry.idx, frozenset(entry.nodes)))
        elif entry.kind is Kind.RETIRED_COMMITTED:
            self._leaving.append(entry)

    def _sign(self, idx: int) -> None:
        if self.retirement is not None and self.retirement.phase is Phase.ORDERED:
            self.retirement.phase, self.retirement.committable_idx = Phase.SIGNED, idx

    def _reconfigure(self, configuration: Configuration) -> None:
        if self.configurations and configuration.nodes == self.configurations[-1].nodes:
            return
        if self.in_latest() and self.node_id not in configuration.nodes and self.retirement is None:
            self.retirement = Retirement(configuration.idx)
        self.configurations.append(configuration)

    def rollback(self, idx: int) -> None:
        """Undo the effect of entries above `idx`; a retirement whose entry is cut never happened."""
        self.configurations = [c for c in self.configurations if c.idx <= idx]
        self._leaving = [entry for entry in self._leaving if entry.idx <= idx]
        if self.retirement is None:
            return
        if self.retirement.idx > idx:
            self.retirement = None
        elif self.retirement.committable_idx > idx:
            self.retirement.phase, self.retirement.committable_idx = Phase.ORDERED, 0

    def commit(self, idx: int) -> set[NodeId]:
        """Everything up to `idx` is committed. Returns the nodes that need no more messages."""
        retirement = self.retirement
        if retirement is not None and retirement.phase is Phase.SIGNED and idx >= retirement.committable_idx:
            retirement.phase = Phase.COMPLETED
        gone = self._retire(idx)
        self._drop_configurations(idx)
        return gone

    def _retire(self, idx: int) -> set[NodeId]:
        gone = {node for entry in self._leaving if entry.idx <= idx for node in entry.nodes}
        self._leaving = [entry for entry in self._leaving if entry.idx > idx]
        self.retired_committed |= gone
        if self.node_id in gone and self.retirement is not None and self.retirement.phase is Phase.COMPLETED:
            self.retirement.phase = Phase.RETIRED_COMMITTED
        return gone - {self.node_id}

    def _drop_configurations(self, idx: int) -> None:
        """Configurations older than the newest committed one no longer count."""
        while len(self.configurations) > 1 and self.configurations[1].idx <= idx:
            self._former |= self.configurations.pop(0).nodes

    def to_clean_up(self) -> tuple[NodeId, ...]:
        """Nodes whose removal is committed, and whose RETIRED_COMMITTED is not in the log yet."""
        named = {node for entry in self._leaving for node in entry.nodes}
        return tuple(sorted(self._former - self.active_nodes() - self.retired_committed - named))

    def may_join(self, nodes: Iterable[NodeId]) -> bool:
        """Whether no id has been left out before, even by a configuration that is still pending.

        Ids never return. One that is a member again when its removal ends would be named as removable.
        """
        newest = self.configurations[-1].nodes if self.configurations else frozenset()
        return ((self._former | self.active_nodes()) - newest).isdisjoint(nodes)
