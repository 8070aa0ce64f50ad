"""What became of an entry, as one node knows it. Pure.

Committed and Invalid are final, and no two nodes say both of one entry. Unknown may become Pending, and Pending may
become Unknown again, where a later leader cut the entry off but nothing of its view is committed yet. A node that lags,
or has restarted and knows a lower commit, may still say Unknown or Pending of what another node calls final.
"""

from __future__ import annotations

from enum import Enum

from ha.raft.messages import TxId


class TxStatus(Enum):
    """CCF's names."""

    UNKNOWN = "Unknown"  # not in this log, and may still come
    PENDING = "Pending"  # in this log, and may still be lost
    COMMITTED = "Committed"  # in every later leader's log, for ever
    INVALID = "Invalid"  # never in any


FOLLOWING = frozenset(
    {
        (TxStatus.UNKNOWN, TxStatus.PENDING),
        (TxStatus.UNKNOWN, TxStatus.COMMITTED),
        (TxStatus.UNKNOWN, TxStatus.INVALID),
        (TxStatus.PENDING, TxStatus.COMMITTED),
        (TxStatus.PENDING, TxStatus.INVALID),
        (TxStatus.PENDING, TxStatus.UNKNOWN),
    }
)
"""Which status may follow which on one node, as long as it runs; those in between may be unseen."""


def tx_status(at: TxId, view_here: int, committed: TxId) -> TxStatus:
    """The status of the entry `at`. `view_here`: of this node's entry at that index, 0 where it has none.

    `committed`: the newest that this node knows to be committed; what it has up to there never changes.
    """
    if committed.idx >= at.idx:
        return TxStatus.COMMITTED if view_here == at.view else TxStatus.INVALID
    if view_here == at.view:
        return TxStatus.PENDING
    return TxStatus.INVALID if committed.view > at.view else TxStatus.UNKNOWN
