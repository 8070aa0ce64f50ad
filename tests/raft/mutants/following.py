"""Defects of followers."""

from __future__ import annotations

from typing import Any

from ha.raft import core, following
from ha.raft.messages import AppendEntries, AppendResponse, TxId
from ha.raft.state import State
from ha.raft.views import ViewHistory
from tests.raft.mutants.registry import mutant


@mutant("truncates_without_conflict", "A log is cut only where it differs", following, "first_conflict")
def _(_: Any) -> Any:
    return lambda s, message: message.prev_idx + 1 if message.prev_idx < s.log.last_idx else None


@mutant("truncates_without_conflict", "A log is cut only where it differs", following, "_clear")
def _(original: Any) -> Any:
    def clear(s: State, message: AppendEntries) -> Any:
        s.may_truncate = True
        return original(s, message)

    return clear


@mutant("truncates_twice", "A log is cut once in each leadership", following, "_clear")
def _(original: Any) -> Any:
    """No scenario can show it: a log that was cut is a beginning of its leader's log, and a leader only appends.

    So no later message of that view differs from it. A unit test forges one.
    """

    def clear(s: State, message: AppendEntries) -> Any:
        s.may_truncate = True
        return original(s, message)

    return clear


@mutant("never_truncates", "A log that differs from the leader's is cut", following, "first_conflict")
def _(_: Any) -> Any:
    return lambda s, message: None


@mutant("truncates_in_its_first_view_only", "Each leadership may cut once", State, "adopt")
def _(original: Any) -> Any:
    def adopt(s: State, view: int) -> None:
        may_truncate = s.may_truncate or s.view == 0
        original(s, view)
        s.may_truncate = may_truncate

    return adopt


@mutant("candidate_may_not_truncate", "Who loses an election may cut in that view", following, "receive_entries")
def _(original: Any) -> Any:
    def receive(s: State, src: str, message: AppendEntries) -> None:
        if message.view == s.view and s.is_candidate:
            s.become_follower()
            s.may_truncate = False
        original(s, src, message)

    return receive


@mutant("candidate_ignores_the_winner", "A candidate follows who won its view", following, "receive_entries")
def _(original: Any) -> Any:
    return lambda s, src, message: None if s.is_candidate else original(s, src, message)


@mutant("acknowledges_its_last", "An acknowledgement names what was checked", following, "acknowledge")
def _(_: Any) -> Any:
    def acknowledge(s: State, src: str, message: AppendEntries) -> None:
        s.send(src, AppendResponse(s.view, s.log.last_idx, success=True), durable_idx=s.log.last_idx)

    return acknowledge


@mutant("commits_beyond_what_was_checked", "A follower commits what it has checked", following, "known_commit")
def _(_: Any) -> Any:
    return lambda message: message.leader_commit_idx


@mutant("commits_before_its_leader", "A follower commits what its leader has committed", following, "known_commit")
def _(_: Any) -> Any:
    return lambda message: message.idx


@mutant("checks_no_previous", "Entries follow an entry that both logs have", following, "agrees")
def _(_: Any) -> Any:
    return lambda s, message: message.prev_idx <= s.log.last_idx


@mutant("checks_no_txids", "Each entry is the one that the header names", following, "_is_whole")
def _(_: Any) -> Any:
    return lambda message: True


@mutant(
    "follower_steps_back_one_entry", "A follower's estimate skips views that the leader lacks", following, "estimate"
)
def _(_: Any) -> Any:
    def estimate(s: State, message: AppendEntries) -> TxId:
        idx = min(message.prev_idx - 1, s.log.last_idx)
        return TxId(s.view, idx)

    return estimate


@mutant("estimate_hides_its_end", "A shorter log says where it ends", following, "estimate")
def _(_: Any) -> Any:
    return lambda s, message: TxId(s.view, max(message.prev_idx - 1, 0))


@mutant(
    "skips_one_view_too_few",
    "Logs part before the first view that one of them lacks",
    ViewHistory,
    "highest_possible_match",
)
def _(_: Any) -> Any:
    return lambda views, at, last_idx: min(at.idx, last_idx)


@mutant("refusal_restarts_timer", "Entries that do not fit do not put off an election", following, "receive_entries")
def _(original: Any) -> Any:
    def receive(s: State, src: str, message: AppendEntries) -> None:
        s.restart_timer()
        original(s, src, message)

    return receive


@mutant("entries_keep_timer", "Whoever hears its leader does not stand for election", following, "receive_entries")
def _(original: Any) -> Any:
    def receive(s: State, src: str, message: AppendEntries) -> None:
        elapsed_ms = s.elapsed_ms
        original(s, src, message)
        s.elapsed_ms = elapsed_ms

    return receive


@mutant("knows_no_leader", "Whoever takes entries knows its leader", following, "receive_entries")
def _(original: Any) -> Any:
    def receive(s: State, src: str, message: AppendEntries) -> None:
        original(s, src, message)
        s.leader_id = None

    return receive


@mutant(
    "old_leaders_get_no_answer", "A leader of an earlier view is told of the later one", following, "receive_entries"
)
def _(original: Any) -> Any:
    return lambda s, src, message: original(s, src, message) if message.view >= s.view else None


@mutant("follows_old_leaders", "Entries of an earlier view's leader are refused", following, "receive_entries")
def _(original: Any) -> Any:
    def receive(s: State, src: str, message: AppendEntries) -> None:
        if message.view < s.view and not s.is_leader:
            message = AppendEntries(
                s.view,
                message.prev_idx,
                message.prev_view,
                message.idx,
                message.view_of_idx,
                message.leader_commit_idx,
                message.entries,
            )
        original(s, src, message)

    return receive


@mutant("answers_outdated_entries", "Entries from before the commit are not answered", following, "receive_entries")
def _(original: Any) -> Any:
    def receive(s: State, src: str, message: AppendEntries) -> None:
        before = len(s.effects.messages)
        original(s, src, message)
        if len(s.effects.messages) == before:
            following.acknowledge(s, src, message)

    return receive


@mutant("adopts_no_later_view", "A later view is adopted", core, "_moves_view")
def _(_: Any) -> Any:
    return lambda s, src, message: False
