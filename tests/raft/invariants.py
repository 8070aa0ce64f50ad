"""What must hold after every step, whatever happened: the invariants of CCF's specifications, restated.

A log up to an index is stood for by one number, so that two prefixes are compared at once; a TxID that stands for two
different prefixes breaks LogMatching when it is first seen.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ha.raft.membership import Phase
from ha.raft.messages import Effects, Entry, Kind, NodeId, TxId
from ha.raft.quorums import majority
from ha.raft.state import Leadership
from ha.raft.tx_status import FOLLOWING, TxStatus

if TYPE_CHECKING:
    from tests.raft.world import Node


SAMPLE_EVERY = 5  # of new entries, one is asked for
SAMPLES = 8  # the newest of them
FINAL = {TxStatus.COMMITTED, TxStatus.INVALID}


class Violated(AssertionError):
    """A promise is broken."""


def chained(before: int, entry: Entry) -> int:
    return hash((before, entry.view, entry.idx, entry.kind, entry.body, entry.nodes))


class Invariants:
    """Watches all nodes; each check costs what has changed, not what there is."""

    def __init__(self, nodes: dict[NodeId, Node]) -> None:
        self._nodes = nodes
        self._chain_of: dict[tuple[int, int], int] = {}  # TxID -> the prefix it stands for
        self._committed: list[int] = [0]  # item i: the committed prefix up to i
        self._commits: list[tuple[int, int]] = []  # (view of the leader that committed, idx)
        self._leader_of: dict[int, NodeId] = {}
        self._seen: dict[NodeId, tuple[int, int]] = {}  # (view, commit) at the last look
        self._matches: dict[NodeId, tuple[int, dict[NodeId, int]]] = {}
        self.lost: set[NodeId] = set()
        self._samples: dict[TxId, TxStatus | None] = {}  # what a node called final
        self._told: dict[tuple[NodeId, TxId], TxStatus] = {}  # what each last said of a sample
        self.told_moves: set[tuple[TxStatus, TxStatus]] = set()
        self.answered = 0  # looks at an answered question

    @property
    def committed_idx(self) -> int:
        """The highest commit that any node ever reached."""
        return len(self._committed) - 1

    # ------------------------------------------------------------------------------------------------------- moments

    def truncating(self, node: Node, idx: int) -> None:
        _demand(idx >= self._seen.get(node.node_id, (0, 0))[1], "CommittedLogAppendOnly", node)

    def crashed(self, node: Node) -> None:
        assert node.disk is not None
        kept_view = node.disk.log[-1].view if node.disk.log else 0  # perhaps of a view whose hard state is torn
        durable_view = max(node.disk.hard_state.view, kept_view)
        for view in [
            view for view, leader in self._leader_of.items() if leader == node.node_id and view > durable_view
        ]:
            del self._leader_of[view]  # no node has received it: messages wait for the hard state
            self._chain_of = {txid: chain for txid, chain in self._chain_of.items() if txid[0] != view}
        known = node.disk.hard_state.commit_idx  # of the signatures up to there, the last one is committed
        signed = max((e.idx for e in node.disk.log[:known] if e.kind is Kind.SIGNATURE), default=0)
        self._seen[node.node_id] = (durable_view, signed)
        self._matches.pop(node.node_id, None)
        self._told = {key: status for key, status in self._told.items() if key[0] != node.node_id}
        self.quorum_log()

    def look(self, node: Node, effects: Effects) -> None:
        raft = node.raft
        view, commit_idx = self._seen.get(node.node_id, (0, 0))
        _demand(raft.view >= view, "MonotonicTerm", node)
        _demand(raft.commit_idx >= commit_idx, "monotonic commit", node)
        _demand(raft.last_idx == len(node.log), "the core's log is the driver's", node)
        self._seen[node.node_id] = (raft.view, raft.commit_idx)
        if effects.appended:
            self._log_matching(node, effects.appended)
        if raft.leadership is Leadership.LEADER:
            self._leading(node)
        if raft.commit_idx > commit_idx:
            self._commit(node)
        if any(entry.kind is not Kind.RAW for entry in effects.appended) or effects.truncated_to is not None:
            self._membership(node)
        if effects.appended or effects.truncated_to is not None or raft.commit_idx > commit_idx:
            self.quorum_log()
        self._tx_statuses(node)
        if answered(node) and node.question is not None:
            enough = node.question.commit_idx >= node.question.committed_idx
            _demand(enough, f"the end of the log is known: {node.question}", node)
            self.answered += 1

    def led_on(self, node: Node) -> None:
        """A leader whose core is silent has nominated another node when it has ticked."""
        raft, silence_ms = node.raft, node.raft.state.settings.core_silence_ms
        misses_core = silence_ms and (raft.state.core_age_ms or 0) >= silence_ms
        _demand(not (_leads(node) and misses_core), "a leader leaves a silent core", node)

    # ---------------------------------------------------------------------------------------------------- invariants

    def _tx_statuses(self, node: Node) -> None:
        """Only CCF's moves, and no two nodes disagree on what is final. A few of the newest entries are asked for."""
        for at, final in self._samples.items():
            status, before = node.raft.status_of(at), self._told.get((node.node_id, at))
            if status is before:
                continue
            self._told[node.node_id, at] = status
            if before is not None:
                self.told_moves.add((before, status))
                _demand((before, status) in FOLLOWING, f"{before.value} becomes {status.value}: {at}", node)
            if status in FINAL:
                _demand(final in {None, status}, f"{status.value} here, elsewhere {final and final.value}: {at}", node)
                truly = len(self._committed) > at.idx and self._committed[at.idx] == self._chain_of.get(at)
                _demand(status is not TxStatus.COMMITTED or truly, f"Committed, but is not: {at}", node)
                self._samples[at] = status

    def _sample(self, at: TxId) -> None:
        if len(self._chain_of) % SAMPLE_EVERY:
            return
        self._samples[at] = None
        if len(self._samples) > SAMPLES:
            gone = next(iter(self._samples))
            del self._samples[gone]
            self._told = {key: status for key, status in self._told.items() if key[1] != gone}

    def _log_matching(self, node: Node, appended: Iterable[Entry]) -> None:
        leads = node.raft.leadership is Leadership.LEADER
        for entry in appended:
            before = node.log[entry.idx - 2] if entry.idx > 1 else entry
            known = self._chain_of.get((entry.view, entry.idx))
            if known is None:
                _demand(leads or self._leader_of.get(entry.view) == node.node_id, "entries are their leader's", node)
                self._chain_of[entry.view, entry.idx] = node.chain[entry.idx]
                self._sample(TxId(entry.view, entry.idx))
                # CCF keeps an unsigned end where nothing was ever committed
                signed = before.view == entry.view or before.kind is Kind.SIGNATURE or not node.raft.commit_idx
                _demand(signed, "MonoLog: views rise after a signature", node)
            else:
                _demand(known == node.chain[entry.idx], "LogMatching", node)
            _demand(before.view <= entry.view, "MonoLog: views never fall along a log", node)

    def _leading(self, node: Node) -> None:
        raft = node.raft
        first_seen = raft.view not in self._leader_of
        leader = self._leader_of.setdefault(raft.view, node.node_id)
        _demand(leader == node.node_id, f"ElectionSafety: {leader} leads view {raft.view} too", node)
        if first_seen:
            for view, idx in self._commits:
                if view < raft.view:
                    _demand(self._has(node.chain, idx), "LeaderCompleteness", node)
        _demand(raft.state.members.phase is not Phase.RETIRED_COMMITTED, "nobody leads once retired for good", node)
        self._match_idx(node)

    def _match_idx(self, node: Node) -> None:
        """What a leader counts on is there: on the disk of every node that is not in a later view."""
        view, matches = self._matches.get(node.node_id, (0, {}))
        known = {peer: state.match_idx for peer, state in node.raft.state.peers.items()}
        for peer, idx in known.items():
            _demand(idx <= node.raft.last_idx, f"match of {peer} at {idx} is within the log", node)
            _demand(view != node.raft.view or idx >= matches.get(peer, 0), "MonotonicMatchIndex", node)
            other = self._nodes.get(peer)
            if idx == 0 or other is None or peer in self.lost or (view == node.raft.view and matches.get(peer) == idx):
                continue
            if other.raft.view <= node.raft.view and other.is_up:
                _demand(_has(other.chain, idx, node.chain), f"match of {peer} at {idx} is true", node)
        self._matches[node.node_id] = (node.raft.view, known)

    def _commit(self, node: Node) -> None:
        idx, chain = node.raft.commit_idx, node.chain
        _demand(node.log[idx - 1].kind is Kind.SIGNATURE, "only signatures are committed", node)
        leads = node.raft.leadership is Leadership.LEADER
        _demand(not leads or node.log[idx - 1].view == node.raft.view, "NeverCommitEntryPrevTerms", node)
        if idx <= self.committed_idx:
            _demand(chain[idx] == self._committed[idx], "StateMachineSafety", node)
            return
        _demand(chain[self.committed_idx] == self._committed[-1], "StateMachineSafety", node)
        self._committed += chain[len(self._committed) : idx + 1]
        self._commits.append((node.raft.view, idx))
        for view, leader in self._leader_of.items():
            other = self._nodes[leader]
            if view > node.raft.view and other.is_up and other.raft.view == view and _leads(other):
                _demand(self._has(other.chain, idx), "LeaderCompleteness", other)

    def quorum_log(self) -> None:
        """Each node's committed prefix is on a majority of each committed configuration that it holds active."""
        for node in self._nodes.values():
            commit_idx = node.raft.commit_idx
            if not node.is_up or commit_idx == 0:
                continue
            for configuration in node.raft.state.members.configurations:
                if configuration.idx <= commit_idx:
                    holders = sum(self._holds(member, commit_idx, node) for member in configuration.nodes)
                    _demand(holders >= majority(len(configuration.nodes)), "QuorumLog", node)

    def _holds(self, member: NodeId, idx: int, of: Node) -> bool:
        other = self._nodes.get(member)
        return member in self.lost or (other is not None and _has(other.chain, idx, of.chain))

    def _has(self, chain: list[int], idx: int) -> bool:
        return _has(chain, idx, self._committed)

    def _membership(self, node: Node) -> None:
        """The active configurations are those in the log, from the newest committed one on, no more and no fewer."""
        raft = node.raft
        in_log: list[tuple[int, frozenset[NodeId]]] = []
        for entry in node.log:
            if entry.kind is Kind.RECONFIGURATION and (not in_log or in_log[-1][1] != frozenset(entry.nodes)):
                in_log.append((entry.idx, frozenset(entry.nodes)))
        while len(in_log) > 1 and in_log[1][0] <= raft.commit_idx:
            del in_log[0]
        active = [(c.idx, c.nodes) for c in raft.state.members.configurations if c.idx > 0]
        _demand(active == in_log, f"LogConfigurationConsistent: {active}, the log has {in_log}", node)
        self._retirement(node)

    def _retirement(self, node: Node) -> None:
        retirement, log = node.raft.state.members.retirement, node.log
        if retirement is None:
            return
        _demand(retirement.idx <= len(log), "MembershipStateConsistent: the retirement is in the log", node)
        signed = [e.idx for e in log[retirement.idx :] if e.kind is Kind.SIGNATURE]
        first = signed[0] if signed else 0
        _demand(retirement.committable_idx == first, f"MembershipStateConsistent: signed at {first}", node)


def answered(node: Node) -> bool:
    """Whether the newest question where the log ends is answered."""
    question, raft = node.question, node.raft
    return question is not None and raft.view == question.view and raft.answered_round >= question.round


def _has(chain: list[int], idx: int, reference: list[int]) -> bool:
    return len(chain) > idx and chain[idx] == reference[idx]


def _leads(node: Node) -> bool:
    return node.raft.leadership is Leadership.LEADER


def _demand(holds: bool, name: str, node: Node) -> None:
    if not holds:
        raft = node.raft
        raise Violated(
            f"{name} (node {node.node_id}, view {raft.view}, last {raft.last_idx}, commit {raft.commit_idx})"
        )


class Unchecked(Invariants):
    """Of nodes whose promises are broken already."""

    def truncating(self, node: Node, idx: int) -> None:
        """Demand nothing."""

    def crashed(self, node: Node) -> None:
        """Demand nothing."""

    def look(self, node: Node, effects: Effects) -> None:
        """Demand nothing."""

    def led_on(self, node: Node) -> None:
        """Demand nothing."""

    def quorum_log(self) -> None:
        """Demand nothing."""
