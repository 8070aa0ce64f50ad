"""What a node says became of an entry: each case of CCF's rule. In any weather the simulator looks at every answer."""

from __future__ import annotations

import pytest

from ha.raft import core
from ha.raft.messages import TxId
from ha.raft.tx_status import FOLLOWING, TxStatus, tx_status
from tests.raft.mutants.registry import MUTANTS
from tests.raft.simulator import Simulation

CASES = {
    "below the commit, and here": (TxId(2, 5), 2, TxId(3, 9), TxStatus.COMMITTED),
    "the commit itself": (TxId(3, 9), 3, TxId(3, 9), TxStatus.COMMITTED),
    "below the commit, another view here": (TxId(2, 5), 3, TxId(3, 9), TxStatus.INVALID),
    "here, after the commit": (TxId(3, 12), 3, TxId(3, 9), TxStatus.PENDING),
    "not here yet": (TxId(3, 12), 0, TxId(3, 9), TxStatus.UNKNOWN),
    "of a view to come": (TxId(4, 12), 3, TxId(3, 9), TxStatus.UNKNOWN),
    "of a view that is over": (TxId(2, 12), 0, TxId(3, 9), TxStatus.INVALID),
    "cut off by a leader that has committed nothing": (TxId(3, 12), 4, TxId(3, 9), TxStatus.UNKNOWN),
    "nothing is committed": (TxId(2, 1), 0, TxId(0, 0), TxStatus.UNKNOWN),
}


@pytest.mark.parametrize("name", CASES)
def test_each_case(name: str) -> None:
    at, view_here, committed, status = CASES[name]
    assert tx_status(at, view_here, committed) is status


@pytest.mark.parametrize(
    "name", ["invalid_in_same_view", "invalid_once_cut", "committed_by_index", "committed_once_here"]
)
def test_a_wrong_rule_gives_some_case_another_status(name: str) -> None:
    """Goal: the cases can fail. Method: each defect that the simulator knows, against all of them."""
    with MUTANTS[name].applied():
        answers = [
            core.tx_status(at, view_here, committed)  # type: ignore[attr-defined]
            for at, view_here, committed, _ in CASES.values()
        ]
    assert answers != [status for *_, status in CASES.values()]


def test_in_any_weather_every_move_is_seen_and_no_other() -> None:
    """Goal: the invariant looks at something. Method: seeds until each allowed move was seen; others fail the run."""
    seen: set[tuple[TxStatus, TxStatus]] = set()
    for seed in range(2_000):
        simulation = Simulation(seed)
        assert simulation.run().problem is None
        seen |= simulation.world.invariants.told_moves
        if seen == FOLLOWING:
            return
    assert seen == FOLLOWING
