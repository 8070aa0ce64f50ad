"""Which records show that the holder of a lease lives, and which claims come too late for it. Pure.

Where every replica serves, others write under the holder's activation as well. Their sequence numbers lie between
those of the holder, which begin with 0, and its signs of life. So a dead holder does not live on in what others write.
"""

from __future__ import annotations

from replica.notary.granters import Claim
from replica.notary.records import BarrierRecord

OTHERS_FROM = 2**40  # sequence numbers below are of the lease's holder: its notes and, alone, its requests
SIGNS_OF_LIFE_FROM = 2**62  # and so are these: a range of their own, above all that replicas are given


def shows_life(sequence: int) -> bool:
    """Whether a counting record with this sequence number was written by the holder of the lease."""
    return sequence < OTHERS_FROM or sequence >= SIGNS_OF_LIFE_FROM


def is_leased(barrier: BarrierRecord | None) -> bool:
    """Whether the activation of a barrier holds a lease that readers defend against claims that come too late."""
    return barrier is not None and isinstance(barrier.granter, Claim)


def comes_too_late(claim: BarrierRecord, in_force: BarrierRecord | None, counted_offset: int) -> bool:
    """Whether it claims a lease whose holder wrote a counting record, at `counted_offset`, that it had not read."""
    return is_leased(in_force) and isinstance(claim.granter, Claim) and claim.granter.witnessed < counted_offset
