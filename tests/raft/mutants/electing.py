"""Defects of elections."""

from __future__ import annotations

from typing import Any

from ha.raft import core, electing, leading, quorums
from ha.raft.messages import AppendResponse, PreVoteResponse, ProposeRequestVote, RequestVote, TxId, VoteResponse
from ha.raft.quorums import majority
from ha.raft.state import Leadership, State
from tests.raft.mutants.registry import mutant

# ruff: noqa: ARG005, ARG001, RUF100


@mutant("union_tally", "Votes are a majority in every configuration, not of their union", quorums, "won")
def _(_: Any) -> Any:
    def won(configurations: Any, granted: set[str]) -> bool:
        union = {node for configuration in configurations for node in configuration.nodes}
        return len(union & granted) >= majority(len(union))

    return won


@mutant("votes_in_newest_only", "The older of the active configurations must vote too", quorums, "won")
def _(original: Any) -> Any:
    return lambda configurations, granted: original(list(configurations)[-1:], granted)


@mutant("votes_in_oldest_only", "The newer of the active configurations must vote too", quorums, "won")
def _(original: Any) -> Any:
    return lambda configurations, granted: original(list(configurations)[:1], granted)


@mutant("votes_twice", "A node has one vote in each view", electing, "_vote_is_free")
def _(_: Any) -> Any:
    return lambda s, candidate: True


@mutant("votes_against_its_leader", "Who follows a leader gives no vote in its view", electing, "_vote_is_free")
def _(_: Any) -> Any:
    return lambda s, candidate: s.voted_for in {None, candidate}


@mutant("votes_for_a_shorter_log", "A vote goes to a signed log that is not shorter", electing, "_is_up_to_date")
def _(_: Any) -> Any:
    return lambda s, message: True


@mutant(
    "votes_by_last_entry", "Votes are judged by the last signature, not by the last entry", electing, "_is_up_to_date"
)
def _(_: Any) -> Any:
    def judge(s: State, message: RequestVote) -> bool:
        last = TxId(s.log.view_of(s.log.last_idx), s.log.last_idx)
        return TxId(message.view_of_last_committable, message.last_committable_idx) >= last

    return judge


@mutant("asks_with_last_entry", "A candidate shows its last signature, not its last entry", electing, "_stand")
def _(original: Any) -> Any:
    def stand(s: State, leadership: Leadership, request: Any) -> None:
        idx = s.log.last_idx
        original(s, leadership, lambda view, _idx, _view: request(view, idx, s.log.view_of(idx)))

    return stand


@mutant("votes_by_length", "The later view is ahead, however long the other log is", electing, "_is_up_to_date")
def _(_: Any) -> Any:
    return lambda s, message: message.last_committable_idx >= s.log.last_committable.idx


@mutant("no_pre_vote", "A node that cannot win spends no view", electing, "campaign")
def _(_: Any) -> Any:
    return electing.become_candidate


@mutant("pre_vote_for_a_shorter_log", "A pre-vote is judged by the log", electing, "receive_request_pre_vote")
def _(original: Any) -> Any:
    def receive(s: State, src: str, message: Any) -> None:
        s.send(src, PreVoteResponse(s.view, True))

    return receive


@mutant("pre_vote_is_recorded", "A pre-vote promises nothing", electing, "receive_request_pre_vote")
def _(original: Any) -> Any:
    def receive(s: State, src: str, message: Any) -> None:
        s.voted_for = src
        original(s, src, message)

    return receive


@mutant(
    "pre_vote_asks_the_voter", "A pre-vote does not depend on who was voted for", electing, "receive_request_pre_vote"
)
def _(original: Any) -> Any:
    def receive(s: State, src: str, message: Any) -> None:
        free = s.voted_for in {None, src}
        s.send(src, PreVoteResponse(s.view, free and electing._is_up_to_date(s, message)))

    return receive


@mutant("pre_votes_count_as_votes", "A pre-vote is no vote", electing, "receive_vote")
def _(_: Any) -> Any:
    def receive(s: State, src: str, message: Any) -> None:
        if s.is_candidate and message.view == s.view and message.granted and src in s.peers:
            electing._count(s, src)

    return receive


@mutant("counts_votes_of_other_views", "A vote counts in the view it was given in", electing, "receive_vote")
def _(_: Any) -> Any:
    def receive(s: State, src: str, message: Any) -> None:
        asked = Leadership.CANDIDATE if isinstance(message, VoteResponse) else Leadership.PRE_VOTE_CANDIDATE
        if s.leadership is asked and message.granted and src in s.peers:
            electing._count(s, src)

    return receive


@mutant("counts_denials", "A denial is no vote", electing, "receive_vote")
def _(_: Any) -> Any:
    def receive(s: State, src: str, message: Any) -> None:
        asked = Leadership.CANDIDATE if isinstance(message, VoteResponse) else Leadership.PRE_VOTE_CANDIDATE
        if s.leadership is asked and message.view == s.view and src in s.peers:
            electing._count(s, src)

    return receive


@mutant("keeps_votes_of_last_candidacy", "Each candidacy counts its own votes", electing, "_stand")
def _(original: Any) -> Any:
    def stand(s: State, leadership: Leadership, request: Any) -> None:
        kept = s.granted
        original(s, leadership, request)
        if s.leadership is leadership:
            s.granted |= kept

    return stand


@mutant("same_view_step_down_clears_vote", "A vote stays where the view does", State, "become_follower")
def _(original: Any) -> Any:
    def become_follower(s: State) -> None:
        s.voted_for = None
        original(s)

    return become_follower


@mutant(
    "denies_unknown_candidates",
    "Whoever asks is answered: its configuration may not be here yet",
    electing,
    "receive_request_vote",
)
def _(original: Any) -> Any:
    return lambda s, src, message: original(s, src, message) if src in s.peers else None


@mutant(
    "denies_unknown_pre_votes",
    "Whoever asks is answered: its configuration may not be here yet",
    electing,
    "receive_request_pre_vote",
)
def _(original: Any) -> Any:
    return lambda s, src, message: original(s, src, message) if src in s.peers else None


@mutant(
    "asks_newest_configuration_only", "All members of active configurations are asked for votes", electing, "_stand"
)
def _(original: Any) -> Any:
    def stand(s: State, leadership: Leadership, request: Any) -> None:
        before = len(s.effects.messages)
        original(s, leadership, request)
        if s.members.configurations and not s.is_leader:
            newest = s.members.configurations[-1].nodes
            s.effects.messages[before:] = [out for out in s.effects.messages[before:] if out.to in newest]

    return stand


@mutant("candidate_keeps_its_view", "A candidacy opens a new view", electing, "become_candidate")
def _(original: Any) -> Any:
    def become_candidate(s: State) -> None:
        s.view -= 1
        original(s)
        if not s.members.configurations:
            s.view += 1

    return become_candidate


@mutant("forgets_its_own_vote", "A candidate has given its vote to itself", electing, "become_candidate")
def _(original: Any) -> Any:
    def become_candidate(s: State) -> None:
        original(s)
        s.voted_for = None

    return become_candidate


@mutant("grant_keeps_timer", "A voter lets its candidate try before it stands itself", electing, "receive_request_vote")
def _(original: Any) -> Any:
    def receive(s: State, src: str, message: Any) -> None:
        elapsed_ms = s.elapsed_ms
        original(s, src, message)
        s.elapsed_ms = elapsed_ms

    return receive


@mutant("nominated_in_any_view", "A nomination counts in its own view", electing, "receive_proposal")
def _(_: Any) -> Any:
    return lambda s, message: electing.become_candidate(s)


@mutant("nominated_asks_first", "A nominated node stands at once", electing, "receive_proposal")
def _(_: Any) -> Any:
    return lambda s, message: electing.campaign(s) if message.view == s.view else None


@mutant("answers_move_no_view", "A leader that hears of a later view follows there", core, "_moves_view")
def _(original: Any) -> Any:
    def moves(s: State, src: str, message: Any) -> bool:
        return original(s, src, message) and not isinstance(message, AppendResponse)

    return moves


@mutant("denials_move_no_view", "A candidate that hears of a later view follows there", core, "_moves_view")
def _(original: Any) -> Any:
    def moves(s: State, src: str, message: Any) -> bool:
        return original(s, src, message) and not isinstance(message, VoteResponse | PreVoteResponse)

    return moves


@mutant("proposals_move_views", "A nomination moves nobody into its view", core, "_moves_view")
def _(original: Any) -> Any:
    return lambda s, src, message: isinstance(message, ProposeRequestVote) or original(s, src, message)


@mutant("retired_for_good_stands", "A node that retired for good does not stand for election", electing, "tick")
def _(_: Any) -> Any:
    def tick(s: State) -> None:
        if s.ticking and s.elapsed_ms >= s.settings.election_timeout_ms:
            electing.campaign(s)

    return tick


@mutant("waits_though_it_is_ahead", "A node that is counted on, and is ahead, stands for election", electing, "_notice")
def _(_: Any) -> Any:
    return lambda s, message: None


@mutant("stands_before_a_signature", "No election before the first signature", electing, "tick")
def _(_: Any) -> Any:
    def tick(s: State) -> None:
        if s.elapsed_ms >= s.settings.election_timeout_ms:
            electing.campaign(s)

    return tick


@mutant("leads_without_a_word", "A new leader lets everybody know at once", leading, "become_leader")
def _(original: Any) -> Any:
    def become_leader(s: State) -> None:
        before = len(s.effects.messages)
        original(s)
        del s.effects.messages[before:]

    return become_leader


@mutant("strangers_raise_views", "A stranger raises no view while a leader is heard", electing, "must_wait")
def _(_: Any) -> Any:
    return lambda s, src: False


@mutant("strangers_wait_for_good", "A stranger is heard once there is no leader", electing, "must_wait")
def _(_: Any) -> Any:
    return lambda s, src: s.settings.strangers_wait and src not in s.peers


@mutant(
    "sticky_voters_let_go", "A sticky voter gives no pre-vote while its leader is heard", electing, "_sticks_to_leader"
)
def _(_: Any) -> Any:
    return lambda s: False


@mutant("awaits_an_ended_leader", "A leader whose process has ended is replaced at once", electing, "leader_ended")
def _(_: Any) -> Any:
    return lambda s: None


@mutant("sticks_to_an_ended_leader", "A leader whose process has ended keeps no voter", electing, "leader_ended")
def _(original: Any) -> Any:
    def leader_ended(s: State) -> None:
        age_ms = s.leader_age_ms
        original(s)
        s.leader_age_ms = age_ms

    return leader_ended


@mutant("all_stand_at_once", "Nodes that learn of an end together stand one after the other", electing, "leader_ended")
def _(original: Any) -> Any:
    def leader_ended(s: State) -> None:
        original(s)
        if s.leader_id is not None and not s.is_leader:
            s.elapsed_ms = s.settings.election_timeout_ms

    return leader_ended
