"""How a follower handles a leader's entries: check, cut at most once, append, commit, acknowledge."""

from __future__ import annotations

from ha.raft import committing
from ha.raft.messages import AppendEntries, AppendResponse, NodeId, TxId
from ha.raft.state import State, Withdrawal


def receive_entries(s: State, src: NodeId, message: AppendEntries) -> None:
    """Take entries of the leader of this view."""
    if message.view < s.view:
        _refuse(s, src, message, TxId(s.view, s.log.last_idx))
        return
    if s.is_candidate:  # another node won this view
        s.become_follower()
    if contradicts(s, message):
        s.withdraw(Withdrawal.CONTRADICTED)
        return
    if not agrees(s, message):
        _refuse(s, src, message, estimate(s, message))
        return
    s.restart_timer()
    s.leader_id = src
    s.leader_age_ms = 0
    if message.prev_idx < s.log.commit_idx:  # long outdated: it brings nothing new, and needs no answer
        return
    if not _is_whole(message):
        _refuse(s, src, message, TxId(s.view, s.log.last_idx))
    elif _clear(s, message):
        _append(s, message)
        acknowledge(s, src, message)


def contradicts(s: State, message: AppendEntries) -> bool:
    """Whether the leader has another entry where this log is committed. No leader of a later view has, unless a disk
    was set back: one that voted for it had acknowledged that entry, and forgotten it."""
    if message.prev_idx > s.log.commit_idx:
        return False
    conflict = first_conflict(s, message) if agrees(s, message) else message.prev_idx
    return conflict is not None and conflict <= s.log.commit_idx


def agrees(s: State, message: AppendEntries) -> bool:
    """Whether this log has the entry that the message's entries follow."""
    return message.prev_idx <= s.log.last_idx and s.log.view_of(message.prev_idx) == message.prev_view


def estimate(s: State, message: AppendEntries) -> TxId:
    """Up to where this log and the leader's may agree: this log's end, or before its views later than `prev_view`."""
    if message.prev_idx > s.log.last_idx:
        return TxId(s.view, s.log.last_idx)
    idx = s.log.views.highest_possible_match(TxId(message.prev_view, message.prev_idx), s.log.last_idx)
    return TxId(s.log.views.view_at(idx), idx)


def _refuse(s: State, src: NodeId, message: AppendEntries, at: TxId) -> None:
    """A message of an earlier leadership is no question of this one: rounds begin anew when a node restarts."""
    asked = message.round if message.view == s.view else 0
    s.send(src, AppendResponse(at.view, at.idx, success=False, round=asked))


def _is_whole(message: AppendEntries) -> bool:
    """Whether the entries have the TxIDs that the header names: the sender's log may have changed since."""
    first, view, entries = message.prev_idx + 1, message.view_of_idx, message.entries
    return (
        message.prev_view <= view <= message.view
        and len(entries) == message.idx - message.prev_idx
        and all(entry.idx == idx and entry.view == view for idx, entry in enumerate(entries, first))
    )


def _clear(s: State, message: AppendEntries) -> bool:
    """Cut this log where it differs from the message. False: it may not be cut, and the message must be ignored.

    A log is cut at most once in each leadership: later entries came from this leader, and were acknowledged.
    """
    conflict = first_conflict(s, message)
    if conflict is None:
        return True
    if not s.may_truncate:
        return False
    s.may_truncate = False
    s.rollback(conflict - 1)
    return True


def first_conflict(s: State, message: AppendEntries) -> int | None:
    """The first index at which this log has an entry of another view than the message has."""
    first, last = message.prev_idx + 1, min(message.idx, s.log.last_idx)
    if first > last or s.log.view_of(last) == s.log.view_of(first) == message.view_of_idx:
        return None
    if s.log.view_of(first) != message.view_of_idx:
        return first
    return s.log.views.end_of_run(first, last) + 1


def _append(s: State, message: AppendEntries) -> None:
    news = message.entries[max(s.log.last_idx - message.prev_idx, 0) :]
    if news:
        s.append(news)
    committing.advance_follower(s, known_commit(message))


def known_commit(message: AppendEntries) -> int:
    """The commit, bounded by what was checked: past the message, this log may have entries that the leader lacks."""
    return min(message.leader_commit_idx, message.idx)


def acknowledge(s: State, src: NodeId, message: AppendEntries) -> None:
    """Acknowledge what was checked, which may be less than this log has."""
    s.send(src, AppendResponse(s.view, message.idx, success=True, round=message.round), durable_idx=message.idx)
