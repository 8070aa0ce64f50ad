"""The state of one node, and the few changes that more than one module makes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ha.invariant import InvariantBroken
from ha.raft.batches import BatchSize
from ha.raft.membership import Membership
from ha.raft.messages import Effects, Entry, HardState, Kind, Message, NodeId, Outgoing, TxId
from ha.raft.settings import RaftSettings
from ha.raft.views import ViewHistory


class Leadership(StrEnum):
    """What a node is doing. NONE: a joiner that has heard no leader, or a node that has retired permanently."""

    NONE = "None"
    FOLLOWER = "Follower"
    PRE_VOTE_CANDIDATE = "PreVoteCandidate"
    CANDIDATE = "Candidate"
    LEADER = "Leader"


class Withdrawal(StrEnum):
    """Why a node takes part no more, for good: a disk was set back, its own or another one's."""

    EXPELLED = "expelled"  # it has less than it once acknowledged, as a leader found
    CONTRADICTED = "contradicted"  # the leader lacks what this node knows to be committed


@dataclass(slots=True)
class Peer:
    """What a leader knows about another node. A peer may be no member: one that was left out still gets messages."""

    sent_idx: int  # sent up to here, answered or not
    match_idx: int = 0  # agrees up to here; never falls within a leadership
    ack_age_ms: int = 0  # since any answer, success or refusal
    round: int = 0  # the newest round that it has answered (reading.py)
    probe_idx: int | None = None  # refused: one message from here at a time, until one is accepted


class Log:
    """The shape of the log; the driver has the entries."""

    __slots__ = ("commit_idx", "committable", "last_idx", "views")

    def __init__(self) -> None:
        self.last_idx = 0
        self.commit_idx = 0
        self.committable: list[int] = []  # signatures above commit_idx, ascending
        self.views = ViewHistory()

    @property
    def last_committable(self) -> TxId:
        """The last signature, which votes compare."""
        idx = self.committable[-1] if self.committable else self.commit_idx
        return TxId(self.views.view_at(idx), idx)

    def view_of(self, idx: int) -> int:
        """The view of the entry at `idx`; 0 where there is none."""
        return self.views.view_at(idx) if idx <= self.last_idx else 0

    def highest_committable(self, idx: int) -> int:
        """The highest signature after the commit, at most `idx`; 0 if there is none."""
        place = bisect_right(self.committable, idx)
        return self.committable[place - 1] if place else 0

    def append(self, entries: Sequence[Entry]) -> None:
        """Add entries of one view."""
        self.views.update(entries[0].idx, entries[0].view)
        self.committable += [entry.idx for entry in entries if entry.kind is Kind.SIGNATURE]
        self.last_idx = entries[-1].idx

    def rollback(self, idx: int) -> None:
        """Forget what is above `idx`."""
        self.last_idx = idx
        self.views.rollback(idx)
        del self.committable[bisect_right(self.committable, idx) :]

    def commit(self, idx: int) -> None:
        """All up to `idx` is committed."""
        self.commit_idx = idx
        del self.committable[: bisect_right(self.committable, idx)]


class State:
    """One node."""

    def __init__(
        self, node_id: NodeId, settings: RaftSettings, random: Callable[[], float], *, ticking: bool = False
    ) -> None:
        self.node_id = node_id
        self.settings = settings
        self.random = random  # in [0, 1)
        self.view = 0
        self.voted_for: NodeId | None = None
        self.leader_id: NodeId | None = None
        self.leadership = Leadership.NONE
        self.log = Log()
        self.members = Membership(node_id)
        self.peers: dict[NodeId, Peer] = {}
        self.granted: set[NodeId] = set()  # votes, or pre-votes, in this view
        self.may_truncate = False  # once in each leadership that this node follows
        self.round = 0  # of questions about the log's end
        self.should_sign = False  # a new leader commits nothing before it has signed
        self.ticking = ticking  # no election before the first signature
        self.elapsed_ms = 0  # since the timer was restarted
        self.leader_age_ms = 0  # since a message of the leader
        self.core_age_ms: int | None = None  # since the core beside this node was heard; None: not counted
        self.expelled: set[NodeId] = set()  # nodes that have less than they once acknowledged
        self.withdrawn: Withdrawal | None = None
        self.durable_idx = 0  # synced by this node's own disk
        self.batch = BatchSize(
            settings.append_limit_bytes,
            settings.batch_entries_first,
            settings.batch_entries_min,
            fixed=settings.batch_is_fixed,
        )
        self.effects = Effects()
        self.hard_state_taken = self.hard_state()

    @property
    def is_leader(self) -> bool:
        """Whether this node leads its view."""
        return self.leadership is Leadership.LEADER

    @property
    def is_candidate(self) -> bool:
        """Whether this node stands for election, or asks whether it should."""
        return self.leadership in {Leadership.CANDIDATE, Leadership.PRE_VOTE_CANDIDATE}

    def hard_state(self) -> HardState:
        """What must survive a restart. The commit is included once what it covers is on disk."""
        return HardState(self.view, self.voted_for, min(self.log.commit_idx, self.durable_idx))

    def send(self, to: NodeId, message: Message, durable_idx: int = 0) -> None:
        """Queue a message; `durable_idx`: what of the log must be on disk first."""
        self.effects.messages.append(Outgoing(to, message, durable_idx))

    def restart_timer(self) -> None:
        """Restart the timer, with a wait of half to all of the election timeout."""
        self.elapsed_ms = int(self.random() * self.settings.election_timeout_ms / 2)

    # ---------------------------------------------------------------------------------------------------- leadership

    def adopt(self, view: int) -> None:
        """Another node is in a later view: follow in that view, without having voted in it."""
        self.view = view
        self.voted_for = None
        self.become_follower()

    def become_follower(self) -> None:
        """Follow in the present view. Vote and unsigned end of the log stay: that end may be acknowledged."""
        self.leadership = Leadership.FOLLOWER
        self.leader_id = None
        self.may_truncate = True
        self.restart_timer()
        for peer in self.peers.values():
            peer.ack_age_ms = 0

    # ----------------------------------------------------------------------------------------------------------- log

    def append(self, entries: Sequence[Entry]) -> list[NodeId]:
        """Add entries of one view at the end of the log. Returns the nodes that they make peers."""
        self.effects.appended += entries
        return self.learn(entries)

    def learn(self, entries: Sequence[Entry]) -> list[NodeId]:
        """Take the effect of entries; the driver has them already, or gets them with the next effects."""
        self.log.append(entries)
        joined: list[NodeId] = []
        for entry in entries:
            if entry.kind is not Kind.RAW:
                joined += self._learn_mark(entry)
        return joined

    def _learn_mark(self, entry: Entry) -> list[NodeId]:
        """Membership changes when an entry is appended, not when it is committed."""
        self.members.append(entry)
        if entry.kind is Kind.SIGNATURE and self.members.in_latest():
            self.ticking = True
        joined: list[NodeId] = []
        if entry.kind is Kind.RECONFIGURATION:
            joined = sorted(node for node in entry.nodes if node != self.node_id and node not in self.peers)
            self.peers |= {node: Peer(sent_idx=entry.idx - 1) for node in joined}
        return joined

    def withdraw(self, why: Withdrawal) -> None:
        """Take part no more: neither vote, nor lead, nor acknowledge."""
        self.withdrawn, self.leadership, self.leader_id = why, Leadership.NONE, None

    def rollback(self, idx: int) -> None:
        """Cut the log after `idx`. Raises InvariantBroken if that would cut committed entries."""
        if idx < self.log.commit_idx:
            raise InvariantBroken(f"rollback to {idx}, committed {self.log.commit_idx}")
        if idx >= self.log.last_idx:
            return
        self.log.rollback(idx)
        self.members.rollback(idx)
        self.durable_idx = min(self.durable_idx, idx)
        effects = self.effects
        effects.appended = [entry for entry in effects.appended if entry.idx <= idx]
        effects.truncated_to = idx if effects.truncated_to is None else min(effects.truncated_to, idx)

    def synced_idx(self) -> int:
        """Up to where this node's own log counts in a quorum."""
        return self.durable_idx if self.settings.durable else self.log.last_idx
