"""Defects of leaders that are asked where the log ends."""

from __future__ import annotations

from typing import Any

from ha.raft import following, leading, quorums, reading
from ha.raft.messages import AppendEntries, AppendResponse, NodeId, TxId
from ha.raft.state import Peer, State
from tests.raft.mutants.registry import mutant


@mutant("answers_at_once", "A majority is asked before a reader is answered", reading, "answered_round")
def _(_: Any) -> Any:
    return lambda s: s.round if s.is_leader else 0


@mutant("answers_in_newest_only", "A majority of every configuration is asked", reading, "answered_round")
def _(_: Any) -> Any:
    def answered_round(s: State) -> int:
        newest = s.members.configurations[-1:]
        return quorums.agreed_idx(newest, lambda node: reading._round_of(s, node)) if s.is_leader and newest else 0

    return answered_round


@mutant("any_answer_answers", "Only answers to what was sent after the question count", leading, "note_round")
def _(_: Any) -> Any:
    def note_round(s: State, peer: Peer, message: AppendResponse) -> None:
        if message.view == s.view:
            peer.round = s.round

    return note_round


@mutant("answers_of_any_view", "Answers to an earlier leadership do not count", leading, "note_round")
def _(_: Any) -> Any:
    def note_round(s: State, peer: Peer, message: AppendResponse) -> None:
        peer.round = max(peer.round, message.round)

    return note_round


@mutant("old_messages_answer", "A message of an earlier leadership answers no round of this one", following, "_refuse")
def _(_: Any) -> Any:
    def refuse(s: State, src: NodeId, message: AppendEntries, at: TxId) -> None:
        s.send(src, AppendResponse(at.view, at.idx, success=False, round=message.round))

    return refuse


@mutant("answers_before_own_commit", "A new leader first commits something of its own", reading, "ask")
def _(_: Any) -> Any:
    def ask(s: State) -> int | None:
        if not s.is_leader:
            return None
        s.round += 1
        leading.send_all(s)
        return s.round

    return ask
