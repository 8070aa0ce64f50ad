"""A client that was answered early asks nodes at random, in any weather, what became of its entries.

Per node only CCF's moves; no two nodes disagree on what is final; and whoever keeps what is final, as replicas do for
their clients, sees it stay. The view history that a node publishes leads to the same final answers.
"""

from __future__ import annotations

from bisect import bisect_right

import pytest

from ha.raft import core
from ha.raft.core import Raft
from ha.raft.messages import TxId
from ha.raft.tx_status import FOLLOWING, TxStatus, tx_status
from ha.raft.views import ViewHistory
from replica.active.log_questions import FINAL, LogQuestions
from replica.link.interface import TxQuestion
from replica.notary.answers import TxUnderstood
from tests.raft.invariants import Invariants
from tests.raft.mutants.registry import MUTANTS
from tests.raft.simulator import Simulation

POLL_EVERY_MS = 8
ENTRIES = 24  # the newest that the client knows
SEEDS = 20  # and more, until each allowed move was seen
SEEDS_MAX = 400
MUTANT_SEEDS_MAX = 400


class Disagreement(AssertionError):
    """The client saw what it may not see."""


class Polling(Simulation):
    """A run with a client that polls. It knows every entry that any leader appended, and one that nobody did."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.entries_known: list[TxId] = []
        self.of_nodes: dict[tuple[Raft, TxId], TxStatus] = {}
        self.final: dict[TxId, TxStatus] = {}
        self.replica = LogQuestions(object(), 0.1)  # type: ignore[arg-type]  # what it keeps of the answers
        self.shown: dict[TxId, str] = {}
        self.moves: set[tuple[TxStatus, TxStatus]] = set()
        self.polls = 0
        self._repeat(POLL_EVERY_MS, self.poll, self.random)

    def poll(self) -> None:
        up = [node for _, node in sorted(self.world.nodes.items()) if node.is_up]
        for node in up:
            at = TxId(node.log[-1].view, node.log[-1].idx) if node.log else None
            if at is not None and at not in self.entries_known:
                self.entries_known = [*self.entries_known, at, TxId(at.view + 1, at.idx + 1)][-ENTRIES:]
        if not up or not self.entries_known:
            return
        raft, at = self.random.choice(up).raft, self.random.choice(self.entries_known)
        status = raft.status_of(at)
        self.polls += 1
        self.check_node(raft, at, status)
        self.check_view_history(raft, at, status)
        self.check_client(at, status)

    def check_node(self, raft: Raft, at: TxId, status: TxStatus) -> None:
        before = self.of_nodes.get((raft, at), status)
        self.of_nodes[raft, at] = status
        if before is not status:
            self.moves.add((before, status))
            demand((before, status) in FOLLOWING, f"{at}: {before.value} became {status.value} on one node")
        if status.value in FINAL:
            demand(self.final.setdefault(at, status) is status, f"{at}: two nodes disagree on what is final")

    def check_view_history(self, raft: Raft, at: TxId, status: TxStatus) -> None:
        """What a client computes from the newest commit and the committed views alone."""
        committed = TxId(raft.state.log.view_of(raft.commit_idx), raft.commit_idx)
        starts = raft.view_history()[: committed.view]
        view_there = bisect_right(starts, at.idx) if at.idx <= committed.idx else 0
        computed = tx_status(at, view_there, committed)
        if computed.value in FINAL or status.value in FINAL:
            demand(computed is status, f"{at}: {status.value}, by the view history {computed.value}")

    def check_client(self, at: TxId, status: TxStatus) -> None:
        answer = TxUnderstood(f"{at.view}.{at.idx}", status.value, "")
        shown = self.replica._known(TxQuestion(at.view, at.idx), answer)
        assert isinstance(shown, TxUnderstood)
        before = self.shown.get(at, shown.status)
        self.shown[at] = shown.status
        moved = TxStatus(before), TxStatus(shown.status)
        demand(before == shown.status or moved in FOLLOWING, f"{at}: {before} became {shown.status} for the client")


def demand(holds: bool, what: str) -> None:
    if not holds:
        raise Disagreement(what)


def test_a_client_sees_ccfs_moves_and_no_others() -> None:
    """Goal: early answers mean what they promise. Method: poll through elections, cuts, crashes; each move is seen."""
    moves: set[tuple[TxStatus, TxStatus]] = set()
    polls = 0
    for seed in range(SEEDS_MAX):
        run = Polling(seed)
        assert run.run().problem is None
        moves |= run.moves
        polls += run.polls
        if seed >= SEEDS and moves == FOLLOWING:
            break
    assert polls > 100 * SEEDS
    assert moves == FOLLOWING


@pytest.fixture
def unwatched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the client looks."""
    monkeypatch.setattr(Invariants, "_tx_statuses", lambda self, node: None)


def seen_in_some_seed() -> bool:
    for seed in range(MUTANT_SEEDS_MAX):
        try:
            Polling(seed).run()
        except Disagreement:
            return True
    return False


@pytest.mark.parametrize(
    "name", ["invalid_in_same_view", "invalid_once_cut", "committed_by_index", "committed_once_here"]
)
def test_the_client_notices_a_wrong_rule(name: str, unwatched: None) -> None:
    with MUTANTS[name].applied():
        assert core.tx_status is not tx_status  # type: ignore[attr-defined]
        assert seen_in_some_seed()


def test_the_client_notices_a_wrong_view_history(unwatched: None, monkeypatch: pytest.MonkeyPatch) -> None:
    true = ViewHistory.dense
    monkeypatch.setattr(ViewHistory, "dense", lambda self: [start + 1 for start in true(self)])
    assert seen_in_some_seed()


def test_the_client_notices_a_replica_that_keeps_nothing(unwatched: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogQuestions, "_known", lambda self, question, answer: answer)
    assert seen_in_some_seed()
