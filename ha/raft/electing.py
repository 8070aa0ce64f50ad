"""Standing for election, and voting."""

from __future__ import annotations

from ha.raft import leading, quorums
from ha.raft.messages import (
    NodeId,
    PreVoteResponse,
    ProposeRequestVote,
    RequestPreVote,
    RequestVote,
    TxId,
    VoteResponse,
)
from ha.raft.state import Leadership, State


def tick(s: State) -> None:
    """Stand for election if no leader was heard for the time-out."""
    if s.ticking and not s.members.is_gone and s.elapsed_ms >= s.settings.election_timeout_ms:
        campaign(s)


def leader_ended(s: State) -> None:
    """The leader's process has ended, so there is no need to wait for its silence.

    All nodes may learn it in one moment. So they stand one message apart, in the order of their ids.
    """
    if s.leader_id is None or s.is_leader:
        return
    place = len([n for n in s.members.active_nodes() - {s.leader_id} if n < s.node_id])
    wait_ms = min(place * s.settings.message_timeout_ms, s.settings.election_timeout_ms // 2)
    s.elapsed_ms = max(s.elapsed_ms, s.settings.election_timeout_ms - wait_ms)
    s.leader_age_ms = max(s.leader_age_ms, s.settings.sticky_ms)


def campaign(s: State) -> None:
    """Ask for pre-votes first, if they are on: a node that cannot win then disturbs no node that has a leader."""
    if s.settings.pre_vote:
        _stand(s, Leadership.PRE_VOTE_CANDIDATE, RequestPreVote)
    else:
        become_candidate(s)


def become_candidate(s: State) -> None:
    """Open a new view, and ask for the votes of all members of active configurations."""
    if s.members.configurations:
        s.view += 1
        s.voted_for = s.node_id
        _stand(s, Leadership.CANDIDATE, RequestVote)


def _stand(s: State, leadership: Leadership, request: type[RequestVote] | type[RequestPreVote]) -> None:
    if not s.members.configurations:
        return
    s.leadership = leadership
    s.leader_id = None
    s.restart_timer()
    s.granted = set()
    last = s.log.last_committable
    for node in sorted(s.members.active_nodes() - {s.node_id}):
        s.send(node, request(s.view, last.idx, last.view))
    _count(s, s.node_id)


def _count(s: State, voter: NodeId) -> None:
    s.granted.add(voter)
    if not quorums.won(s.members.configurations, s.granted):
        return
    if s.leadership is Leadership.PRE_VOTE_CANDIDATE:
        become_candidate(s)
    else:
        leading.become_leader(s)


# ------------------------------------------------------------------------------------------------------------- voting


def receive_request_vote(s: State, src: NodeId, message: RequestVote) -> None:
    """Vote once in a view, for a candidate whose signed log is not shorter. Every request is answered."""
    _notice(s, message)
    granted = message.view == s.view and _vote_is_free(s, src) and _is_up_to_date(s, message)
    if granted:
        s.voted_for = src
        s.leader_id = None
        s.restart_timer()
    s.send(src, VoteResponse(s.view, granted))


def receive_request_pre_vote(s: State, src: NodeId, message: RequestPreVote) -> None:
    """Answer whether the candidate's log is long enough. The answer promises nothing."""
    _notice(s, message)
    granted = message.view == s.view and _is_up_to_date(s, message) and not _sticks_to_leader(s)
    s.send(src, PreVoteResponse(s.view, granted))


def _notice(s: State, message: RequestVote | RequestPreVote) -> None:
    """Run the timer if a candidate with an older log asks, even if no signature here made this node a member.

    The other nodes may need this node's vote, and then only this node can win. That happens to a joiner if the leader
    that sent it the log has died.
    """
    if not _is_up_to_date(s, message):
        s.ticking = True


def _vote_is_free(s: State, candidate: NodeId) -> bool:
    return s.leader_id is None and s.voted_for in {None, candidate}


def _is_up_to_date(s: State, message: RequestVote | RequestPreVote) -> bool:
    return TxId(message.view_of_last_committable, message.last_committable_idx) >= s.log.last_committable


def must_wait(s: State, src: NodeId) -> bool:
    """Whether a message of a later view is dropped: it is a stranger's, and this node has a leader.

    A stranger is in no configuration that this node knows. It may be a member all the same, of a configuration that
    has not arrived here. So it is heard as soon as there is no leader: perhaps it is the only one that can win.
    """
    return s.settings.strangers_wait and src not in s.peers and _hears_leader(s)


def _sticks_to_leader(s: State) -> bool:
    return s.settings.sticky_voters and _hears_leader(s)


def _hears_leader(s: State) -> bool:
    return s.is_leader or (s.leader_id in s.peers and s.leader_age_ms < s.settings.sticky_ms)


def receive_vote(s: State, src: NodeId, message: VoteResponse | PreVoteResponse) -> None:
    """Count an answer to the present candidacy, in this view, from a known node."""
    asked = Leadership.CANDIDATE if isinstance(message, VoteResponse) else Leadership.PRE_VOTE_CANDIDATE
    if s.leadership is asked and message.view == s.view and message.granted and src in s.peers:
        _count(s, src)


def receive_proposal(s: State, message: ProposeRequestVote) -> None:
    """The leader of this view wants this node to take over: stand at once, without pre-votes."""
    if message.view == s.view and s.ticking and not s.members.is_gone:
        become_candidate(s)
