"""Defects of reconfiguration and retirement."""

from __future__ import annotations

from typing import Any

from ha.raft import committing, electing, leading
from ha.raft.core import Raft
from ha.raft.membership import Configuration, Membership, Phase, Retirement
from ha.raft.messages import Entry, Kind
from ha.raft.state import Leadership, State
from tests.raft.mutants.registry import mutant


@mutant("same_configuration_again", "A configuration like the newest is no new one", Membership, "_reconfigure")
def _(_: Any) -> Any:
    def reconfigure(members: Membership, configuration: Configuration) -> None:
        if members.in_latest() and members.node_id not in configuration.nodes and members.retirement is None:
            members.retirement = Retirement(configuration.idx)
        members.configurations.append(configuration)

    return reconfigure


@mutant(
    "rollback_keeps_configurations", "A configuration that is gone from the log does not count", Membership, "rollback"
)
def _(original: Any) -> Any:
    def rollback(members: Membership, idx: int) -> None:
        kept = members.configurations
        original(members, idx)
        members.configurations = kept

    return rollback


@mutant("rollback_keeps_retirement", "A retirement that is gone from the log never was", Membership, "rollback")
def _(original: Any) -> Any:
    def rollback(members: Membership, idx: int) -> None:
        kept = members.retirement
        original(members, idx)
        members.retirement = kept

    return rollback


@mutant("rollback_keeps_signed", "A retirement whose signature is gone is ordered only", Membership, "rollback")
def _(original: Any) -> Any:
    def rollback(members: Membership, idx: int) -> None:
        retirement = members.retirement
        kept = retirement and (retirement.phase, retirement.committable_idx)
        original(members, idx)
        if members.retirement is not None and kept:
            members.retirement.phase, members.retirement.committable_idx = kept

    return rollback


@mutant(
    "rollback_keeps_removal",
    "A RETIRED_COMMITTED entry that is gone from the log removes nobody",
    Membership,
    "rollback",
)
def _(original: Any) -> Any:
    def rollback(members: Membership, idx: int) -> None:
        kept = members._leaving
        original(members, idx)
        members._leaving = kept

    return rollback


@mutant("retires_without_order", "A node that a configuration leaves out retires", Membership, "_reconfigure")
def _(_: Any) -> Any:
    def reconfigure(members: Membership, configuration: Configuration) -> None:
        if not members.configurations or configuration.nodes != members.configurations[-1].nodes:
            members.configurations.append(configuration)

    return reconfigure


@mutant("signed_again", "The first signature after its order signs a retirement", Membership, "_sign")
def _(_: Any) -> Any:
    def sign(members: Membership, idx: int) -> None:
        if members.retirement is not None and members.retirement.phase in {Phase.ORDERED, Phase.SIGNED}:
            members.retirement.phase, members.retirement.committable_idx = Phase.SIGNED, idx

    return sign


@mutant("completed_when_signed", "A retirement is completed by its commit", Membership, "_sign")
def _(original: Any) -> Any:
    def sign(members: Membership, idx: int) -> None:
        original(members, idx)
        if members.retirement is not None and members.retirement.phase is Phase.SIGNED:
            members.retirement.phase = Phase.COMPLETED

    return sign


def _when_completed(s: State) -> bool:
    return s.members.phase in {Phase.COMPLETED, Phase.RETIRED_COMMITTED}


@mutant("leaves_at_completed", "A retired leader leads until its removal is known to all", committing, "commit")
def _(original: Any) -> Any:
    def commit(s: State, idx: int) -> None:
        original(s, idx)
        if _when_completed(s) and s.is_leader:
            committing._leave(s)

    return commit


def _unless_completed(original: Any) -> Any:
    def method(raft: Raft, *arguments: Any) -> None:
        if not _when_completed(raft.state):
            original(raft, *arguments)

    return method


mutant("premature_retirement", "A node that was left out is needed until its removal is known to all", Raft, "receive")(
    _unless_completed
)
mutant("premature_retirement", "", Raft, "tick")(_unless_completed)


@mutant("retired_does_not_vote", "A retired node votes", electing, "receive_request_vote")
def _(original: Any) -> Any:
    return lambda s, src, message: None if _when_completed(s) else original(s, src, message)


@mutant("retired_does_not_vote", "A retired node votes", electing, "receive_request_pre_vote")
def _(original: Any) -> Any:
    return lambda s, src, message: None if _when_completed(s) else original(s, src, message)


@mutant(
    "retired_does_not_stand",
    "A retired node stands for election until its removal is known to all",
    electing,
    "campaign",
)
def _(original: Any) -> Any:
    return lambda s: None if s.members.retirement is not None else original(s)


@mutant(
    "drops_peers_with_their_configuration",
    "Who was left out is sent to until its removal is known to all",
    committing,
    "commit",
)
def _(original: Any) -> Any:
    def commit(s: State, idx: int) -> None:
        original(s, idx)
        s.peers = {node: peer for node, peer in s.peers.items() if node in s.members.active_nodes()}

    return commit


@mutant("keeps_peers_for_ever", "Nobody sends to a node whose removal is known to all", Membership, "commit")
def _(original: Any) -> Any:
    def commit(members: Membership, idx: int) -> set[str]:
        original(members, idx)
        return set()

    return commit


@mutant("retired_for_good_leads_on", "A leader that retired for good leads no more", committing, "_leave")
def _(_: Any) -> Any:
    return committing.nominate


@mutant("leaves_without_a_successor", "A leader that retires for good nominates a successor", committing, "_leave")
def _(_: Any) -> Any:
    def leave(s: State) -> None:
        s.leadership = Leadership.NONE
        s.leader_id = None

    return leave


@mutant("removed_before_commit", "A removal counts once it is committed", Membership, "append")
def _(original: Any) -> Any:
    def append(members: Membership, entry: Entry) -> None:
        original(members, entry)
        if entry.kind is Kind.RETIRED_COMMITTED:
            members.retired_committed |= set(entry.nodes)

    return append


@mutant(
    "keeps_old_configurations", "A committed configuration ends those before it", Membership, "_drop_configurations"
)
def _(_: Any) -> Any:
    return lambda members, idx: None


@mutant(
    "drops_configurations_uncommitted",
    "A configuration counts until its successor is committed",
    Membership,
    "_reconfigure",
)
def _(original: Any) -> Any:
    def reconfigure(members: Membership, configuration: Configuration) -> None:
        original(members, configuration)
        if members.configurations[-1] is configuration:
            members._former |= {node for c in members.configurations for node in c.nodes}
            members.configurations = [configuration]

    return reconfigure


@mutant("new_members_are_not_greeted", "A new member hears at once", leading, "_greet")
def _(_: Any) -> Any:
    return lambda s, node: None


@mutant(
    "new_members_are_no_peers", "A new member is sent to from its configuration's execution on", State, "_learn_mark"
)
def _(original: Any) -> Any:
    def learn(s: State, entry: Entry) -> list[str]:
        peers = dict(s.peers)
        original(s, entry)
        s.peers = peers if len(s.members.configurations) > 1 else s.peers
        return []

    return learn


@mutant(
    "no_cleanup_on_commit",
    "A leader asks for the removal of nodes when it has committed their end",
    committing,
    "commit",
)
def _(original: Any) -> Any:
    def commit(s: State, idx: int) -> None:
        kept = s.effects.cleanup
        original(s, idx)
        s.effects.cleanup = kept

    return commit


@mutant(
    "no_cleanup_on_election",
    "A new leader asks for the removals that its predecessor did not come to",
    leading,
    "become_leader",
)
def _(original: Any) -> Any:
    def become_leader(s: State) -> None:
        original(s)
        s.effects.cleanup = ()

    return become_leader
