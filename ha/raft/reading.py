"""Where the log ends. A leader answers only after a majority confirmed, after the question, that it still leads.

CCF does not confirm its reads: a deposed leader may answer from old knowledge for a while. Here each message of a
leader carries the number of its newest round, and each answer repeats it. Such answers by a quorum show that no other
leader had committed anything when the question came, because that would have needed the same quorum.
"""

from __future__ import annotations

from ha.raft import leading, quorums
from ha.raft.messages import NodeId
from ha.raft.state import State


def ask(s: State) -> int | None:
    """Begin a round, and send its number to all peers.

    None: this node does not lead, or nothing of its own view is committed yet. Earlier leaders may then have committed
    more than it knows.
    """
    if not s.is_leader or s.log.views.view_at(s.log.commit_idx) != s.view:
        return None
    s.round += 1
    leading.send_all(s)
    return s.round


def answered_round(s: State) -> int:
    """The newest round that a majority of every configuration has answered; 0: none, or this node does not lead."""
    if not s.is_leader or not s.members.configurations:
        return 0
    return quorums.agreed_idx(s.members.configurations, lambda node: _round_of(s, node))


def _round_of(s: State, node: NodeId) -> int:
    if node == s.node_id:
        return s.round
    peer = s.peers.get(node)
    return 0 if peer is None else peer.round
