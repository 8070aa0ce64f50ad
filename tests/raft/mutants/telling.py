"""What a node may not say of an entry."""

from __future__ import annotations

from typing import Any

from ha.raft import core
from ha.raft.messages import TxId
from ha.raft.tx_status import TxStatus
from ha.raft.tx_status import tx_status as true_status
from tests.raft.mutants.registry import mutant


@mutant("invalid_in_same_view", "Of the committed view more may come", core, "tx_status")
def _(_: Any) -> Any:
    def tx_status(at: TxId, view_here: int, committed: TxId) -> TxStatus:
        if committed.idx < at.idx and view_here != at.view and committed.view >= at.view:
            return TxStatus.INVALID
        return true_status(at, view_here, committed)

    return tx_status


@mutant("invalid_once_cut", "Cut off here may still be committed elsewhere", core, "tx_status")
def _(_: Any) -> Any:
    def tx_status(at: TxId, view_here: int, committed: TxId) -> TxStatus:
        if committed.idx < at.idx and view_here > at.view:
            return TxStatus.INVALID
        return true_status(at, view_here, committed)

    return tx_status


@mutant("committed_by_index", "Another entry may stand at a committed index", core, "tx_status")
def _(_: Any) -> Any:
    def tx_status(at: TxId, view_here: int, committed: TxId) -> TxStatus:
        return TxStatus.COMMITTED if committed.idx >= at.idx else true_status(at, view_here, committed)

    return tx_status


@mutant("committed_once_here", "What a log has may still be cut off", core, "tx_status")
def _(_: Any) -> Any:
    def tx_status(at: TxId, view_here: int, committed: TxId) -> TxStatus:
        return TxStatus.COMMITTED if view_here == at.view else true_status(at, view_here, committed)

    return tx_status
