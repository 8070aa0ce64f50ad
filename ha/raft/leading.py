"""How a leader works: append, send, process answers, and step down if no majority answers."""

from __future__ import annotations

from collections.abc import Sequence

from ha.raft import committing, quorums
from ha.raft.messages import AppendEntries, AppendResponse, Entry, Expelled, Kind, NodeId, TxId
from ha.raft.state import Leadership, Peer, State


def become_leader(s: State) -> None:
    """Lead this view: cut the unsigned end, which can never be committed, and announce the leadership."""
    s.leadership = Leadership.LEADER
    s.leader_id = s.node_id
    s.elapsed_ms = 0
    discard_unsigned(s)
    s.should_sign = True
    s.effects.cleanup = s.members.to_clean_up()
    for node in sorted(s.peers):
        s.peers[node] = Peer(sent_idx=s.log.last_idx)
        send_entries(s, node)


def discard_unsigned(s: State) -> None:
    """Cut the unsigned end. CCF keeps it if nothing was committed yet; a node that is `durable` never does."""
    idx = s.log.last_committable.idx
    if s.log.commit_idx > 0 or (s.settings.durable and idx > 0):
        s.rollback(idx)


def tick(s: State, ms: int) -> None:
    """Send when due. Step down, in the same view, if the majority of a configuration is silent (CheckQuorum)."""
    if s.elapsed_ms >= s.settings.message_timeout_ms:
        s.elapsed_ms = 0
        s.batch.update()
        _end_probes(s)
        send_all(s)
    for peer in s.peers.values():
        peer.ack_age_ms += ms
    if not quorums.heard(s.members.configurations, lambda node: _is_live(s, node)):
        s.become_follower()
    elif s.settings.core_silence_ms and (s.core_age_ms or 0) >= s.settings.core_silence_ms:
        _pass_on(s)


def _pass_on(s: State) -> None:
    """Nominate another node, since the core beside this one is silent. Once, until that is heard again: if the cores
    of several nodes are silent, the leadership does not go round for ever."""
    s.core_age_ms = None
    committing.nominate(s)


def _end_probes(s: State) -> None:
    """End unanswered probes and send a heartbeat instead: a follower never answers entries older than its commit.

    The same if the bound on unacknowledged entries holds a silent peer back: it may have committed more than was sent.
    """
    for peer in s.peers.values():
        if peer.probe_idx is not None or _is_held_back(s, peer):
            peer.probe_idx, peer.sent_idx = None, s.log.last_idx


def _is_held_back(s: State, peer: Peer) -> bool:
    silent = peer.ack_age_ms >= s.settings.election_timeout_ms // 2
    return silent and _send_limit(s, peer) <= peer.sent_idx < s.log.last_idx


def _is_live(s: State, node: NodeId) -> bool:
    peer = s.peers.get(node)
    return node == s.node_id or (peer is not None and peer.ack_age_ms < s.settings.election_timeout_ms)


# ------------------------------------------------------------------------------------------------------------- append


def replicate(s: State, entries: Sequence[Entry], view: int) -> bool:
    """Append entries of this view. False: refused, and nothing has changed."""
    if not s.is_leader or view != s.view or not entries or not _continues(s, entries) or not _may_add(s, entries):
        return False
    for node in s.append(entries):
        _greet(s, node)
    if any(entry.kind is Kind.SIGNATURE for entry in entries):
        s.should_sign = False
    if s.batch.count(len(entries), sum(len(entry.body) for entry in entries)):
        s.batch.update()
        send_all(s)
    if s.members.active_nodes() <= {s.node_id}:
        committing.advance_leader(s)
    return True


def _continues(s: State, entries: Sequence[Entry]) -> bool:
    first = s.log.last_idx + 1
    return all(entry.idx == idx and entry.view == s.view for idx, entry in enumerate(entries, first))


def _may_add(s: State, entries: Sequence[Entry]) -> bool:
    """Two rules that have switches: no id returns, and a new member has caught up before quorums include it."""
    wanted = {node for entry in entries if entry.kind is Kind.RECONFIGURATION for node in entry.nodes}
    if s.settings.ids_once and not s.members.may_join(wanted):
        return False
    return not s.settings.joiners_catch_up or all(has_caught_up(s, node) for node in _new(s, wanted))


def _new(s: State, nodes: set[NodeId]) -> set[NodeId]:
    return nodes - s.members.active_nodes() - {s.node_id} if s.members.configurations else set()


def has_caught_up(s: State, node: NodeId) -> bool:
    """Whether `node` has all that is committed."""
    peer = s.peers.get(node)
    return peer is not None and peer.match_idx >= max(s.log.commit_idx, 1)


def teach(s: State, node: NodeId) -> None:
    """Send the log to a node that is in no configuration yet, from now on while this node leads."""
    if s.is_leader and node != s.node_id and node not in s.peers and node not in s.members.retired_committed:
        s.peers[node] = Peer(sent_idx=s.log.last_idx)
        send_entries(s, node)


def _greet(s: State, node: NodeId) -> None:
    """Send a heartbeat from before the entry that makes it a member; a node without a log answers what it lacks."""
    s.send(node, _header(s, s.peers[node].sent_idx, s.peers[node].sent_idx))


# --------------------------------------------------------------------------------------------------------------- send


def send_all(s: State) -> None:
    """Send to each peer what is new for it, or a heartbeat."""
    for node in sorted(s.peers):
        send_entries(s, node)


def send_news(s: State) -> None:
    """Send to the peers for which there is something new."""
    for node in sorted(s.peers):
        if s.peers[node].sent_idx < _send_limit(s, s.peers[node]):
            send_entries(s, node)


def send_entries(s: State, node: NodeId) -> None:
    """Send what was not sent yet, split by batch size and at the end of each view; if nothing is new, a heartbeat.

    The leader does not wait for answers: what is sent counts as received until an answer contradicts it.
    """
    peer = s.peers[node]
    if peer.probe_idx is not None:
        s.send(node, _header(s, peer.probe_idx, _batch_end(s, peer.probe_idx, s.log.last_idx)))
        return
    end = _send_limit(s, peer)
    if peer.sent_idx >= end:
        s.send(node, _header(s, peer.sent_idx, peer.sent_idx))
    while peer.sent_idx < end:
        idx = _batch_end(s, peer.sent_idx, end)
        s.send(node, _header(s, peer.sent_idx, idx))
        peer.sent_idx = idx


def _batch_end(s: State, prev_idx: int, end: int) -> int:
    return min(prev_idx + s.batch.entries, s.log.views.end_of_run(prev_idx + 1, end), end)


def _send_limit(s: State, peer: Peer) -> int:
    bound = s.settings.unacknowledged_max
    return min(s.log.last_idx, peer.match_idx + bound) if bound else s.log.last_idx


def _header(s: State, prev_idx: int, idx: int) -> AppendEntries:
    view_at = s.log.views.view_at
    return AppendEntries(s.view, prev_idx, view_at(prev_idx), idx, view_at(idx), s.log.commit_idx, round=s.round)


# ------------------------------------------------------------------------------------------------------------ answers


def receive_response(s: State, src: NodeId, message: AppendResponse) -> None:
    """Any answer shows that the node is alive; only a success shows what it has."""
    peer = s.peers.get(src)
    if not s.is_leader or peer is None:
        return
    peer.ack_age_ms = 0
    note_round(s, peer, message)
    if message.success:
        held_back = peer.probe_idx is not None or s.settings.unacknowledged_max > 0
        _acknowledged(s, peer, message)
        if held_back and s.peers.get(src) is peer and peer.sent_idx < _send_limit(s, peer):
            send_entries(s, src)
    elif _is_set_back(s, peer, message):
        s.expelled.add(src)
        del s.peers[src]  # it counts in no quorum, and gets no entries
        s.send(src, Expelled(s.view))
    elif _step_back(s, peer, TxId(message.view, message.last_log_idx)) and (s.settings.resends or s.settings.probes):
        send_entries(s, src)


def _acknowledged(s: State, peer: Peer, message: AppendResponse) -> None:
    if message.view == s.view and peer.match_idx <= message.last_log_idx <= s.log.last_idx:
        peer.match_idx = message.last_log_idx
        if peer.probe_idx is not None and message.last_log_idx >= peer.probe_idx:
            peer.probe_idx, peer.sent_idx = None, message.last_log_idx
        committing.advance_leader(s)


def _is_set_back(s: State, peer: Peer, refusal: AppendResponse) -> bool:
    """Whether a node has lost entries that it acknowledged: a correct estimate is never below what it acknowledged."""
    return s.settings.ordered_links and refusal.last_log_idx < peer.match_idx


def _step_back(s: State, peer: Peer, estimate: TxId) -> bool:
    """Go back to where the logs may agree, by the estimates of both nodes. An estimate may name an old view.

    With probes, a refusal without new information is ignored. After a single lost message all later ones are refused.
    If each refusal made the leader send all of them again, that would never end.
    """
    possible = s.log.views.highest_possible_match(estimate, s.log.last_idx)
    idx = max(min(possible, peer.sent_idx), peer.match_idx)
    if s.settings.probes:
        if estimate.idx < peer.match_idx or (peer.probe_idx is not None and idx >= peer.probe_idx):
            return False
        peer.probe_idx = idx
    peer.sent_idx = idx
    return True


def note_round(s: State, peer: Peer, message: AppendResponse) -> None:
    """Record which question for the log's end a peer has answered: see reading.py. In this view the answer shows that
    the node followed no later leader when it saw the round."""
    if message.view == s.view:
        peer.round = max(peer.round, message.round)
