"""The consensus of a log: what one node decides. `Raft` is driven by calls, and its effects are taken as data.

    driver:  tick(ms)  receive(src, message)  replicate(entries, view)  flush()  nominate(to)  synced(at)  ask_end()
             take() -> Effects: write the hard state, cut, append, sync, then send what has become safe

Every message comes in by `receive`. It settles views first, and hands on to the room that the message is for.
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
from ha.raft.state import Leadership, State

FIRST_VIEW_STEP = 2  # CCF's first view is 2


class LogIncomplete(HaError):
    """The disk has less than it once had. Such a node must neither vote nor acknowledge: what it said may be gone."""

    code = "HA_LOG_INCOMPLETE"
    remedy = "Remove this node from the configuration, and let it join again as a new one with an empty disk"


class Raft:
    """One node. `random` returns floats in [0, 1); `ticking`: do not wait for a first signature to run the timer."""

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
        """A node that comes back with what its disk has: the last hard state, and its log from the first entry on.

        Of RAW entries only the first of each view and the very last need be there; all others must. The log may end in
        entries that nobody signed, or that others replaced; the leader will say. Raises LogIncomplete where the disk
        has lost what was committed.
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
        """So much time has passed, in milliseconds."""
        s = self.state
        s.elapsed_ms += ms
        s.leader_age_ms += ms
        if s.is_leader:
            leading.tick(s, ms)
        elif not s.is_expelled:
            electing.tick(s)

    def receive(self, src: NodeId, message: Message) -> None:
        """A message came. A later view than ours is adopted before it is looked at, if it is one that counts."""
        s = self.state
        if s.is_expelled:
            return
        if src in s.expelled:
            s.send(src, Expelled(s.view))
            return
        if message.view > s.view and _moves_view(s, src, message):
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
                s.is_expelled, s.leadership, s.leader_id = True, Leadership.NONE, None

    def replicate(self, entries: Sequence[Entry], view: int) -> bool:
        """Append entries that carry the next indices and this view. False: not taken, and nothing has changed."""
        return leading.replicate(self.state, entries, view)

    def flush(self) -> None:
        """Send what was appended now; without, it waits for the next message that is due."""
        if self.state.is_leader:
            leading.send_news(self.state)

    def announce(self) -> None:
        """Tell everybody what is committed; without, it goes with the next message. No-op unless leading."""
        if self.state.is_leader:
            leading.send_all(self.state)

    def nominate(self, to: NodeId | None = None) -> None:
        """Ask a peer to take over: before this node stops, or because another should lead. No-op unless leading."""
        committing.nominate(self.state, to)

    def teach(self, node: NodeId) -> None:
        """Bring a node up to date that is to become a member; no-op unless leading."""
        leading.teach(self.state, node)

    def has_caught_up(self, node: NodeId) -> bool:
        """Whether a node that is taught may become a member."""
        return self.state.is_leader and leading.has_caught_up(self.state, node)

    def synced(self, at: TxId) -> None:
        """This node's disk has its log up to the entry `at`. Late news of an entry since cut off changes nothing."""
        s = self.state
        if s.log.view_of(at.idx) == at.view and at.idx > s.durable_idx:
            s.durable_idx = at.idx
            committing.advance_leader(s)

    def ask_end(self) -> int | None:
        """Ask whether this node still leads; the number of the round.

        Once `answered_round` has reached it in this view, all that anybody had committed before the question was
        committed here by then. None: not leading, or nothing of its own view is committed yet.
        """
        return reading.ask(self.state)

    def take(self) -> Effects:
        """What is to be carried out since the last call."""
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
        """A new leader that has not signed yet: nothing of earlier views is committed before it does."""
        return self.state.should_sign and self.state.is_leader

    @property
    def is_expelled(self) -> bool:
        """A leader found this node's disk set back: what it said may be gone. It has fallen silent; end it."""
        return self.state.is_expelled

    @property
    def removable_nodes(self) -> tuple[NodeId, ...]:
        """Nodes that are of no more use: their removal is committed, and every later leader knows."""
        return tuple(sorted(self.state.members.retired_committed))

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
    """Bodies as the entries that would come next in this node's log and view."""
    view = raft.view
    return [Entry(view, idx, kind, body) for idx, body in enumerate(bodies, raft.last_idx + 1)]


def _moves_view(s: State, src: NodeId, message: Message) -> bool:
    """A leader's or a candidate's view always counts; an answer's, for whoever waits for one from a node it knows."""
    match message:
        case AppendEntries() | RequestVote() | RequestPreVote():
            return True
        case AppendResponse():
            return s.is_leader and src in s.peers
        case VoteResponse() | PreVoteResponse():
            return s.is_candidate and src in s.peers
        case ProposeRequestVote() | Expelled():
            return False
