"""Defects of leaders."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ha.raft import committing, leading, quorums
from ha.raft.batches import BatchSize
from ha.raft.messages import AppendEntries, AppendResponse, TxId
from ha.raft.quorums import majority
from ha.raft.state import Leadership, Log, Peer, State
from tests.raft.mutants.registry import mutant


@mutant("commits_earlier_views", "A leader commits signatures of its own view only", committing, "advance_leader")
def _(_: Any) -> Any:
    def advance(s: State) -> None:
        if not s.is_leader or not s.members.configurations:
            return
        match_of = lambda node: committing._match_idx(s, node)  # noqa: E731
        idx = s.log.highest_committable(quorums.agreed_idx(s.members.configurations, match_of))
        if idx:
            committing.commit(s, idx)

    return advance


@mutant(
    "clears_committables_on_election",
    "Signatures of earlier views stay committable: votes are judged by them",
    leading,
    "become_leader",
)
def _(original: Any) -> Any:
    def become_leader(s: State) -> None:
        original(s)
        s.log.committable.clear()

    return become_leader


@mutant("commits_unsigned", "Only signatures are committed", Log, "highest_committable")
def _(_: Any) -> Any:
    return lambda log, idx: min(idx, log.last_idx) if min(idx, log.last_idx) > log.commit_idx else 0


@mutant(
    "commits_by_union", "A commit needs a majority of every configuration, not of their union", quorums, "agreed_idx"
)
def _(_: Any) -> Any:
    def agreed_idx(configurations: Any, match_of: Any) -> Any:
        union = {node for configuration in configurations for node in configuration.nodes}
        return sorted(map(match_of, union))[(len(union) - 1) // 2]

    return agreed_idx


@mutant("commits_in_newest_only", "The older configurations must have a commit too", quorums, "agreed_idx")
def _(original: Any) -> Any:
    return lambda configurations, match_of: original(list(configurations)[-1:], match_of)


@mutant("commits_in_oldest_only", "The newer configurations must have a commit too", quorums, "agreed_idx")
def _(original: Any) -> Any:
    return lambda configurations, match_of: original(list(configurations)[:1], match_of)


@mutant("commits_on_half", "Half of the nodes is no majority", quorums, "_agreed_in")
def _(_: Any) -> Any:
    def agreed_in(configuration: Any, match_of: Any) -> Any:
        matches = sorted(match_of(node) for node in configuration.nodes)
        return matches[len(matches) // 2]

    return agreed_in


@mutant("refusal_moves_match", "Only a success says what a node has", leading, "_step_back")
def _(original: Any) -> Any:
    def step_back(s: State, peer: Peer, estimate: TxId) -> Any:
        peer.match_idx = max(peer.match_idx, min(estimate.idx, s.log.last_idx))
        committing.advance_leader(s)
        return original(s, peer, estimate)

    return step_back


@mutant(
    "match_falls", "What a node has acknowledged it keeps, however late an older answer comes", leading, "_acknowledged"
)
def _(_: Any) -> Any:
    def acknowledged(s: State, peer: Peer, message: AppendResponse) -> None:
        if message.view == s.view:
            peer.match_idx = message.last_log_idx
            committing.advance_leader(s)

    return acknowledged


@mutant(
    "counts_acknowledgements_of_earlier_views", "An acknowledgement counts in its own view", leading, "_acknowledged"
)
def _(_: Any) -> Any:
    def acknowledged(s: State, peer: Peer, message: AppendResponse) -> None:
        peer.match_idx = max(peer.match_idx, min(message.last_log_idx, s.log.last_idx))
        committing.advance_leader(s)

    return acknowledged


@mutant("drops_refusals_of_earlier_views", "An old view in a refusal says where logs part", leading, "receive_response")
def _(original: Any) -> Any:
    def receive(s: State, src: str, message: AppendResponse) -> None:
        if message.success or message.view == s.view:
            original(s, src, message)

    return receive


@mutant("silent_leader_stays", "A leader that hears no majority steps down", quorums, "heard")
def _(_: Any) -> Any:
    return lambda configurations, is_live: True


@mutant("any_configuration_is_enough_to_stay", "A leader must hear a majority of every configuration", quorums, "heard")
def _(_: Any) -> Any:
    def heard(configurations: Any, is_live: Any) -> bool:
        return any(sum(map(is_live, c.nodes)) >= majority(len(c.nodes)) for c in configurations)

    return heard


@mutant("only_success_is_life", "Any answer shows that a node lives", leading, "receive_response")
def _(original: Any) -> Any:
    def receive(s: State, src: str, message: AppendResponse) -> None:
        age_ms = s.peers[src].ack_age_ms if src in s.peers else 0
        original(s, src, message)
        if not message.success and src in s.peers:
            s.peers[src].ack_age_ms = age_ms

    return receive


@mutant("step_down_opens_a_view", "A silent leader steps down in its own view", leading, "tick")
def _(original: Any) -> Any:
    def tick(s: State, ms: int) -> None:
        original(s, ms)
        if s.leadership is Leadership.FOLLOWER:
            s.view += 1

    return tick


@mutant("keeps_unsigned_on_election", "A new leader cuts its unsigned end off", leading, "discard_unsigned")
def _(_: Any) -> Any:
    return lambda s: None


@mutant(
    "discards_unsigned_on_step_down", "Who steps down keeps what it may have acknowledged", State, "become_follower"
)
def _(original: Any) -> Any:
    def become_follower(s: State) -> None:
        original(s)
        if s.log.commit_idx > 0:
            s.rollback(s.log.last_committable.idx)

    return become_follower


@mutant("never_asks_for_a_signature", "A new leader asks to sign", leading, "become_leader")
def _(original: Any) -> Any:
    def become_leader(s: State) -> None:
        original(s)
        s.should_sign = False

    return become_leader


@mutant("messages_span_views", "A message has entries of one view", leading, "send_entries")
def _(_: Any) -> Any:
    def send_entries(s: State, node: str) -> None:
        peer = s.peers[node]
        s.send(node, leading._header(s, peer.sent_idx, s.log.last_idx))
        peer.sent_idx = s.log.last_idx

    return send_entries


@mutant("batches_are_not_split", "A message has as many entries as make up its size", leading, "send_entries")
def _(_: Any) -> Any:
    def send_entries(s: State, node: str) -> None:
        peer = s.peers[node]
        if peer.sent_idx >= s.log.last_idx:
            s.send(node, leading._header(s, peer.sent_idx, peer.sent_idx))
        while peer.sent_idx < s.log.last_idx:
            idx = s.log.views.end_of_run(peer.sent_idx + 1, s.log.last_idx)
            s.send(node, leading._header(s, peer.sent_idx, idx))
            peer.sent_idx = idx

    return send_entries


@mutant("batches_do_not_adapt", "The batch follows the size of entries", BatchSize, "update")
def _(_: Any) -> Any:
    def update(batch: BatchSize) -> None:
        batch._bytes = batch._entries = 0

    return update


@mutant("waits_for_the_tick", "A whole message's worth is sent at once", BatchSize, "count")
def _(original: Any) -> Any:
    return lambda batch, entries, size: original(batch, entries, size) and False


@mutant("waits_for_answers", "What is sent counts as received until an answer says otherwise", leading, "send_entries")
def _(original: Any) -> Any:
    def send_entries(s: State, node: str) -> None:
        peer = s.peers[node]
        if peer.sent_idx > peer.match_idx > 0:
            peer.sent_idx = peer.match_idx
        original(s, node)

    return send_entries


@mutant("no_heartbeats", "Nothing new is a heartbeat", leading, "send_entries")
def _(original: Any) -> Any:
    def send_entries(s: State, node: str) -> None:
        if s.peers[node].sent_idx < s.log.last_idx:
            original(s, node)

    return send_entries


@mutant("sends_beyond_the_bound", "No more than a bound is sent ahead of a node's answers", leading, "_send_limit")
def _(_: Any) -> Any:
    return lambda s, peer: s.log.last_idx


@mutant("heartbeat_tells_no_commit", "Every message tells what is committed", leading, "_header")
def _(original: Any) -> Any:
    def header(s: State, prev_idx: int, idx: int) -> AppendEntries:
        sent = original(s, prev_idx, idx)
        commit_idx = sent.leader_commit_idx if idx > prev_idx else 0
        return AppendEntries(sent.view, prev_idx, sent.prev_view, idx, sent.view_of_idx, commit_idx)

    return header


@mutant("steps_back_one_entry", "Logs find where they part by views, not by entries", leading, "_step_back")
def _(_: Any) -> Any:
    def step_back(s: State, peer: Peer, estimate: TxId) -> bool:
        peer.sent_idx = max(peer.sent_idx - 1, peer.match_idx)
        return True

    return step_back


@mutant("believes_the_estimate", "A leader looks an estimate up in its own log", leading, "_step_back")
def _(_: Any) -> Any:
    def step_back(s: State, peer: Peer, estimate: TxId) -> bool:
        peer.sent_idx = max(min(estimate.idx, peer.sent_idx), peer.match_idx)
        return True

    return step_back


@mutant("never_resends", "After a refusal the leader sends again at once", leading, "receive_response")
def _(original: Any) -> Any:
    return _with_resends(original, resends=False)


@mutant("always_resends", "Without `resends` a refusal brings nothing at once", leading, "receive_response")
def _(original: Any) -> Any:
    return _with_resends(original, resends=True)


def _with_resends(original: Any, *, resends: bool) -> Any:
    def receive(s: State, src: str, message: AppendResponse) -> None:
        chosen, s.settings = s.settings, replace(s.settings, resends=resends)
        original(s, src, message)
        s.settings = chosen

    return receive


@mutant("probes_have_no_end", "A probe that is not answered ends", leading, "_end_probes")
def _(_: Any) -> Any:
    return lambda s: None


@mutant("probes_in_bulk", "A refusal that tells nothing new brings nothing", leading, "_step_back")
def _(original: Any) -> Any:
    def step_back(s: State, peer: Peer, estimate: TxId) -> bool:
        original(s, peer, estimate)
        return True

    return step_back


@mutant("nominates_the_first", "The peer with the most of the log is nominated", committing, "_rank")
def _(_: Any) -> Any:
    return lambda s, node: (0, 0, node)


@mutant(
    "nominates_whoever_has_left", "Of equals, the peer in the newest configuration is nominated", committing, "_rank"
)
def _(_: Any) -> Any:
    return lambda s, node: (-s.peers[node].match_idx, 0, node)


@mutant("nominates_the_last_id", "Of equals in all, the lowest id is nominated", committing, "nominate")
def _(original: Any) -> Any:
    def nominate(s: State, to: str | None = None) -> None:
        best = max((committing._rank(s, node)[:2] for node in s.peers), default=None)
        equals = [node for node in s.peers if committing._rank(s, node)[:2] == best]
        original(s, max(equals) if to is None and equals else to)

    return nominate


@mutant("nominator_steps_down", "Who nominates leads on until it is voted out", committing, "nominate")
def _(original: Any) -> Any:
    def nominate(s: State, to: str | None = None) -> None:
        original(s, to)
        if s.is_leader:
            s.become_follower()

    return nominate


@mutant("a_lone_node_waits", "A node alone commits at once", committing, "advance_leader")
def _(original: Any) -> Any:
    return lambda s: original(s) if s.peers else None


@mutant("silent_core_leads_on", "A leader whose core is silent nominates another", leading, "_pass_on")
def _(_: Any) -> Any:
    return lambda s: None


@mutant("nominates_for_ever", "A leader nominates once for a silent core", leading, "_pass_on")
def _(_: Any) -> Any:
    return committing.nominate


@mutant("unheard_core_is_silent", "A core that was never heard is not missed", leading, "tick")
def _(original: Any) -> Any:
    def tick(s: State, ms: int) -> None:
        if s.core_age_ms is None:
            s.core_age_ms = s.settings.core_silence_ms
        original(s, ms)

    return tick


@mutant("held_back_for_good", "A silent peer is asked anew, whatever the bound", leading, "_is_held_back")
def _(_: Any) -> Any:
    return lambda s, peer: False
