"""What is committed, and what follows from it."""

from __future__ import annotations

from ha.raft import quorums
from ha.raft.messages import NodeId, ProposeRequestVote
from ha.raft.state import Leadership, State


def advance_leader(s: State) -> None:
    """Commit the highest signature that a majority of every configuration has, if it is of this leader's own view.

    A signature of an earlier view may be on a majority, and a leader with a later signature may still replace it. Once
    a signature of the leader's own view is committed, everything before it is committed as well.
    """
    if not s.is_leader or not s.members.configurations:
        return
    idx = s.log.highest_committable(quorums.agreed_idx(s.members.configurations, lambda node: _match_idx(s, node)))
    if idx and s.log.views.view_at(idx) == s.view:
        commit(s, idx)


def _match_idx(s: State, node: NodeId) -> int:
    if node == s.node_id:
        return s.synced_idx()
    peer = s.peers.get(node)
    return 0 if peer is None else peer.match_idx


def advance_follower(s: State, known_idx: int) -> None:
    """Commit the highest signature up to `known_idx`, which the leader committed and this node checked."""
    idx = s.log.highest_committable(known_idx)
    if idx and s.log.views.view_at(idx) <= s.view:
        commit(s, idx)


def commit(s: State, idx: int) -> None:
    """All up to the signature at `idx` is committed. The last phase of its retirement ends a node's leadership."""
    was_gone, pending = s.members.is_gone, len(s.members.configurations)
    s.log.commit(idx)
    s.effects.committed_idx = idx
    for node in s.members.commit(idx) - s.members.active_nodes():
        s.peers.pop(node, None)
    if s.is_leader and len(s.members.configurations) < pending:
        s.effects.cleanup = s.members.to_clean_up()
    if s.members.is_gone and not was_gone:
        _leave(s)


def _leave(s: State) -> None:
    nominate(s)
    s.leadership = Leadership.NONE
    s.leader_id = None


def nominate(s: State, to: NodeId | None = None) -> None:
    """Ask a peer to stand for election at once: `to`, or the peer with the longest matching log.

    Ties go to the member of the newest configuration, then to the lowest id. This node leads until another is elected.
    """
    if not s.is_leader or not s.peers or (to is not None and to not in s.peers):
        return
    chosen = min(s.peers, key=lambda node: _rank(s, node)) if to is None else to
    s.send(chosen, ProposeRequestVote(s.view))


def _rank(s: State, node: NodeId) -> tuple[int, int, NodeId]:
    newest = max((c.idx for c in s.members.configurations if node in c.nodes), default=0)
    return -s.peers[node].match_idx, -newest, node
