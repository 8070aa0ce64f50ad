"""The consensus of a log: the decisions of one node. A driver calls `Raft`, and takes its effects as data.

    driver:  tick(ms)  receive(src, message)  replicate(entries, view)  flush()  nominate(to)  synced(at)  ask_end()
             take() -> Effects: write the hard state, cut, append, sync, then send what has become safe

Every message enters through `receive`. It settles views first, and passes the message to the module that handles it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ha.errors import HaError
from ha.raft import committing, electing, following, leading, reading
from ha.raft.messages import (
    AppendEntries,
    AppendResponse,
    Effects,
    Entry,
    Expelled,
    HardState,
    Kind,
    Message,
    NodeId,
    PreVoteResponse,
    ProposeRequestVote,
    RequestPreVote,
    RequestVote,
    TxId,
    VoteResponse,
)
from ha.raft.settings import RaftSettings
from ha.raft.state import Leadership, State, Withdrawal
from ha.raft.tx_status import TxStatus, tx_status

FIRST_VIEW_STEP = 2  # CCF's first view is 2


class LogIncomplete(HaError):
    """The disk has less than it once had. The node must neither vote nor acknowledge: its promises may be lost."""

    code = "HA_LOG_INCOMPLETE"
    remedy = (
        "Remove this node from the configuration, and let it join as a new one, with an empty disk; see"
        " runbooks/log-node-loss.md."
    )


class LogContradicted(HaError):
    """The leader's log lacks an entry that was committed: most likely another node's disk was set back, and voted."""

    code = "HA_LOG_CONTRADICTED"
    remedy = (
        "Stop the notary, and keep all disks: this node has records that the others have lost; see"
        " runbooks/log-node-loss.md."
    )


class Raft:
    """One node. `random` returns floats in [0, 1); `ticking`: run the timer without waiting for a first signature."""

    def __init__(
        self, node_id: NodeId, settings: RaftSettings, random: Callable[[], float], *, ticking: bool = False
    ) -> None:
        self.state = State(node_id, settings, random, ticking=ticking)

    @classmethod
    def restored(
        cls,
        node_id: NodeId,
        settings: RaftSettings,
        random: Callable[[], float],
        hard_state: HardState,
        log: Iterable[Entry],
    ) -> Raft:
        """A node that returns with the content of its disk: the last hard state, and its log from the first entry on.

        `log` may leave out RAW entries, except the first of each view and the very last; all other kinds must be there.
        The log may end in entries that are not signed, or that other nodes have replaced: the leader corrects that.
        Raises LogIncomplete if the disk has lost committed entries.
        """
        raft = cls(node_id, settings, random)
        s = raft.state
        for entry in log:
            s.learn([entry])
        if s.log.last_idx < hard_state.commit_idx:
            raise LogIncomplete(f"the log ends at {s.log.last_idx}, but {hard_state.commit_idx} was committed")
        s.durable_idx = s.log.last_idx
        s.view = max(hard_state.view, s.log.views.view_at(s.log.last_idx))
        s.voted_for = hard_state.voted_for if s.view == hard_state.view else None
        if s.view:
            s.become_follower()
        committing.advance_follower(s, hard_state.commit_idx)
        s.effects = Effects()
        s.hard_state_taken = s.hard_state()
        return raft

    # --------------------------------------------------------------------------------------------------- what happens

    def force_become_leader(self) -> None:
        """Start a new log: this node leads alone. The caller then replicates the first configuration and signs it."""
        self.state.view += FIRST_VIEW_STEP
        leading.become_leader(self.state)

    def tick(self, ms: int) -> None:
        """`ms` milliseconds have passed."""
        s = self.state
        s.elapsed_ms += ms
        s.leader_age_ms += ms
        if s.core_age_ms is not None:
            s.core_age_ms += ms
        if s.is_leader:
            leading.tick(s, ms)
        elif s.withdrawn is None:
            electing.tick(s)

    def receive(self, src: NodeId, message: Message) -> None:
        """Handle a message. A later view than ours is adopted first, if it is valid for this kind of message."""
        s = self.state
        if s.withdrawn is not None:
            return
        if src in s.expelled:
            s.send(src, Expelled(s.view))
            return
        if message.view > s.view:
            if electing.must_wait(s, src):
                return
            if _moves_view(s, src, message):
                s.adopt(message.view)
        match message:
            case AppendEntries():
                following.receive_entries(s, src, message)
            case AppendResponse():
                leading.receive_response(s, src, message)
            case RequestVote():
                electing.receive_request_vote(s, src, message)
            case RequestPreVote():
                electing.receive_request_pre_vote(s, src, message)
            case VoteResponse() | PreVoteResponse():
                electing.receive_vote(s, src, message)
            case ProposeRequestVote():
                electing.receive_proposal(s, message)
            case Expelled():
                s.withdraw(Withdrawal.EXPELLED)

    def replicate(self, entries: Sequence[Entry], view: int) -> bool:
        """Append entries with the next indices and this view. False: refused, and nothing has changed."""
        return leading.replicate(self.state, entries, view)

    def flush(self) -> None:
        """Send now what was appended; without this call it goes with the next message that is due."""
        if self.state.is_leader:
            leading.send_news(self.state)

    def announce(self) -> None:
        """Announce the commit now; without this call it goes with the next message. No-op unless leading."""
        if self.state.is_leader:
            leading.send_all(self.state)

    def nominate(self, to: NodeId | None = None) -> None:
        """Ask a peer to take over, because this node stops or another should lead. No-op unless leading."""
        committing.nominate(self.state, to)

    def heard_core(self) -> None:
        """The replica's core that this node stands beside is alive."""
        self.state.core_age_ms = 0

    def leader_ended(self) -> None:
        """The leader's process has ended, as far as this node can see. An error costs an election, never an entry."""
        electing.leader_ended(self.state)

    def teach(self, node: NodeId) -> None:
        """Send the log to a node that is to become a member; no-op unless leading."""
        leading.teach(self.state, node)

    def has_caught_up(self, node: NodeId) -> bool:
        """Whether a node that gets the log (`teach`) may become a member."""
        return self.state.is_leader and leading.has_caught_up(self.state, node)

    def synced(self, at: TxId) -> None:
        """This node's disk has its log up to the entry `at`. A report on an entry since cut changes nothing."""
        s = self.state
        if s.log.view_of(at.idx) == at.view and at.idx > s.durable_idx:
            s.durable_idx = at.idx
            committing.advance_leader(s)

    def ask_end(self) -> int | None:
        """Ask whether this node still leads; the number of the round.

        Once `answered_round` has reached that number in this view, this node had committed everything that any node
        had committed before the question. None: not leading, or nothing of its own view is committed yet.
        """
        return reading.ask(self.state)

    def take(self) -> Effects:
        """The effects to carry out since the last call."""
        s = self.state
        effects, s.effects = s.effects, Effects()
        hard_state = s.hard_state()
        if hard_state != s.hard_state_taken:
            effects.hard_state = s.hard_state_taken = hard_state
        return effects

    # ---------------------------------------------------------------------------------------------------------- state

    @property
    def view(self) -> int:
        """The view this node is in; 0 before the first."""
        return self.state.view

    @property
    def last_idx(self) -> int:
        """The end of the log."""
        return self.state.log.last_idx

    @property
    def commit_idx(self) -> int:
        """All up to here is committed, and never changes."""
        return self.state.log.commit_idx

    @property
    def leadership(self) -> Leadership:
        """What this node is doing."""
        return self.state.leadership

    @property
    def answered_round(self) -> int:
        """The newest round of `ask_end` that is answered in this leadership; 0: none."""
        return reading.answered_round(self.state)

    @property
    def should_sign(self) -> bool:
        """Whether this is a new leader that has not signed yet. Until then it commits nothing of earlier views."""
        return self.state.should_sign and self.state.is_leader

    @property
    def withdrawn(self) -> Withdrawal | None:
        """Why this node sends nothing more; end it."""
        return self.state.withdrawn

    @property
    def removable_nodes(self) -> tuple[NodeId, ...]:
        """Nodes that may be switched off: their removal is committed, and every later leader knows of it."""
        return tuple(sorted(self.state.members.retired_committed))

    def status_of(self, at: TxId) -> TxStatus:
        """What became of an entry, as far as this node knows."""
        log = self.state.log
        return tx_status(at, log.view_of(at.idx), TxId(log.view_of(log.commit_idx), log.commit_idx))

    def view_history(self) -> list[int]:
        """Item i is the first index of view i + 1."""
        return self.state.log.views.dense()

    def details(self) -> dict[str, Any]:
        """The state under CCF's names, as GET /node/consensus shows it; absent: no such state."""
        s = self.state
        details = {
            "configs": [{"idx": c.idx, "nodes": sorted(c.nodes), "rid": c.idx} for c in s.members.configurations],
            "acks": {
                node: {"seqno": peer.match_idx, "last_received_ms": peer.ack_age_ms}
                for node, peer in sorted(s.peers.items())
            },
            "membership_state": "Active" if s.members.retirement is None else "Retired",
            "leadership_state": s.leadership.value,
            "retirement_phase": s.members.phase and s.members.phase.value,
            "primary_id": s.leader_id,
            "current_view": s.view,
            "ticking": s.ticking,
        }
        return {name: value for name, value in details.items() if value is not None}


def next_entries(raft: Raft, bodies: Iterable[bytes], kind: Kind = Kind.RAW) -> list[Entry]:
    """The bodies as the next entries of this node's log and view."""
    view = raft.view
    return [Entry(view, idx, kind, body) for idx, body in enumerate(bodies, raft.last_idx + 1)]


def _moves_view(s: State, src: NodeId, message: Message) -> bool:
    """Whether a message may raise the view. An answer may only if this node waits for one, and knows the sender."""
    match message:
        case AppendEntries() | RequestVote() | RequestPreVote():
            return True
        case AppendResponse():
            return s.is_leader and src in s.peers
        case VoteResponse() | PreVoteResponse():
            return s.is_candidate and src in s.peers
        case ProposeRequestVote() | Expelled():
            return False
