"""Defects of what CCF does not do: coming back from a disk, and joining with care."""

from __future__ import annotations

from typing import Any

from ha.raft import committing, following, leading
from ha.raft.core import Raft
from ha.raft.membership import Membership
from ha.raft.messages import AppendEntries, AppendResponse, HardState, TxId
from ha.raft.state import State
from tests.raft.mutants.registry import mutant


@mutant("counts_what_is_not_synced", "A leader counts its own log as far as it is synced", State, "synced_idx")
def _(_: Any) -> Any:
    return lambda s: s.log.last_idx


@mutant("acknowledges_what_is_not_synced", "An acknowledgement waits for the disk", following, "acknowledge")
def _(_: Any) -> Any:
    def acknowledge(s: State, src: str, message: AppendEntries) -> None:
        s.send(src, AppendResponse(s.view, message.idx, success=True))

    return acknowledge


def _with_hard_state(change: Any) -> Any:
    def make(original: Any) -> Any:
        def restored(cls: Any, node_id: str, settings: Any, random: Any, hard: HardState, log: Any) -> Any:
            return original.__func__(cls, node_id, settings, random, change(hard), log)

        return classmethod(restored)

    return make


mutant("forgets_its_vote", "A vote survives a restart", Raft, "restored")(
    _with_hard_state(lambda hard: HardState(hard.view, None, hard.commit_idx))
)
mutant("forgets_its_view", "A view survives a restart", Raft, "restored")(
    _with_hard_state(lambda hard: HardState(0, None, hard.commit_idx))
)
mutant("accepts_a_log_cut_short", "A node whose disk lost what was committed does not come back", Raft, "restored")(
    _with_hard_state(lambda hard: HardState(hard.view, hard.voted_for, 0))
)


@mutant("hard_state_keeps_its_vote", "A vote is on disk before it is sent", State, "hard_state")
def _(_: Any) -> Any:
    return lambda s: HardState(s.view, None, min(s.log.commit_idx, s.durable_idx))


@mutant("commit_on_disk_before_its_log", "The commit on disk covers what is on disk", State, "hard_state")
def _(_: Any) -> Any:
    return lambda s: HardState(s.view, s.voted_for, s.log.commit_idx)


@mutant("believes_late_syncs", "A sync counts for the entry that it was of", Raft, "synced")
def _(_: Any) -> Any:
    def synced(raft: Raft, at: TxId) -> None:
        raft.state.durable_idx = max(raft.state.durable_idx, at.idx)
        committing.advance_leader(raft.state)

    return synced


@mutant("truncation_stays_synced", "What was cut is no longer synced", State, "rollback")
def _(original: Any) -> Any:
    def rollback(s: State, idx: int) -> None:
        durable_idx = s.durable_idx
        original(s, idx)
        s.durable_idx = durable_idx

    return rollback


@mutant("joiners_count_at_once", "A joiner counts once it has caught up", leading, "has_caught_up")
def _(_: Any) -> Any:
    return lambda s, node: True


@mutant("accepts_a_disk_set_back", "A node that has less than it acknowledged is refused", leading, "_is_set_back")
def _(_: Any) -> Any:
    return lambda s, peer, refusal: False


@mutant("ignores_a_contradiction", "A node whose leader lacks what is committed withdraws", following, "contradicts")
def _(_: Any) -> Any:
    return lambda s, message: False


@mutant("ids_come_back", "An id that left for good does not come back", Membership, "may_join")
def _(_: Any) -> Any:
    return lambda members, nodes: True


@mutant("ids_come_back_while_they_leave", "An id that was left out does not come back", Membership, "may_join")
def _(_: Any) -> Any:
    return lambda members, nodes: members.retired_committed.isdisjoint(nodes)


@mutant(
    "restored_keeps_unsigned",
    "A node that came back and is elected cuts its unsigned end off",
    leading,
    "discard_unsigned",
)
def _(_: Any) -> Any:
    def discard(s: State) -> None:
        if s.log.commit_idx > 0:
            s.rollback(s.log.last_committable.idx)

    return discard
