"""Sequence numbers: a range that nobody else has, and the activation under which it may be used. Pure.

The void rule lets a number count once in an activation. So two replicas that append under one activation need numbers
of their own. The shared database counts how many ranges it gave away, and each worker draws one. The range is good
for every activation that this very database granted, so a change of holder needs no new one. Its name holds the
timeline: a standby that was promoted may not know the newest ranges, and gives them away again. By then its name is
another one, and so is that of the barriers which it grants. Under a lease the log takes the database's place.
"""

from __future__ import annotations

import msgspec

from replica.notary.errors import InvariantBroken
from replica.notary.granters import Pause, grants_as, opens_nothing
from replica.notary.leases import OTHERS_FROM, SIGNS_OF_LIFE_FROM
from replica.notary.position import Position
from replica.notary.records import BarrierRecord

NUMBERS_PER_RANGE = OTHERS_FROM  # 2**40: at 50,000 records a second they last 254 days
RANGES_MAX = SIGNS_OF_LIFE_FROM // NUMBERS_PER_RANGE - 1  # above the holder's, which begins with 0
FEW_LEFT = 2**32  # a worker with fewer numbers draws its next range: a day before it needs it
Ranges = tuple[tuple[int, int], ...]  # of sequence numbers, [start, end), as positions have them
SEEN_RANGES_MAX = 1_000  # in a position; each lost append leaves a hole, and every run of records stores them all


class NumberRange(msgspec.Struct, frozen=True):
    """The numbers [start, end), given away by `database`, which is named as what granted a barrier (`grants_as`)."""

    start: int
    end: int
    database: str


def range_of(drawn: int, database: str) -> NumberRange:
    """The range of that draw, counted from 1. Raises InvariantBroken past the last one."""
    if not 1 <= drawn <= RANGES_MAX:
        raise InvariantBroken(f"draw {drawn} of a range of sequence numbers, of 1 to {RANGES_MAX}")
    return NumberRange(drawn * NUMBERS_PER_RANGE, (drawn + 1) * NUMBERS_PER_RANGE, database)


def holders_range(database: str) -> NumberRange:
    """The numbers of the holder itself: each activation has them anew."""
    return NumberRange(0, NUMBERS_PER_RANGE, database)


class Numbers:
    """Gives each number of a range away once. A number whose append failed is not used again."""

    def __init__(self, drawn: NumberRange) -> None:
        self.range = drawn
        self.next = drawn.start

    @property
    def left(self) -> int:
        """How many are left."""
        return self.range.end - self.next

    def use(self, count: int) -> None:
        """So many, from `next` on, are used. Raises InvariantBroken when there are fewer."""
        if count > self.left:
            raise InvariantBroken("a range of sequence numbers is used up")
        self.next += count


def needs_range(numbers: Numbers | None, barrier: BarrierRecord, seen: Ranges) -> bool:
    """Whether a worker must draw a range, to go on under this barrier. `seen`: the numbers that counted under it."""
    return numbers is None or not _fits(numbers, barrier, seen) or numbers.left < FEW_LEFT


def usable(numbers: Numbers | None, barrier: BarrierRecord, seen: Ranges) -> bool:
    """Whether a worker may number a record under this barrier. `seen`: the numbers that counted under it."""
    return numbers is not None and _fits(numbers, barrier, seen) and numbers.left > 0


def _fits(numbers: Numbers, barrier: BarrierRecord, seen: Ranges) -> bool:
    """A log that was copied has the records of its claims, but counts draws anew: so a range of which nothing was used
    here may be used up there."""
    given = numbers.range
    is_fresh = numbers.next == given.start
    is_taken = is_fresh and any(start < given.end and given.start < end for start, end in seen)
    return given.database == grants_as(barrier.granter) and not is_taken


def writable(position: Position | None) -> BarrierRecord | None:
    """The barrier under which every replica may append, as this position knows it; None while there is none.

    The activation of a barrier that releases a lease, or pauses service, belongs to nobody.
    """
    barrier = None if position is None else position.barrier
    return None if barrier is None or opens_nothing(barrier.granter) else barrier


def is_paused(position: Position | None) -> bool:
    """Whether operators have paused service, as the barrier in force says."""
    return position is not None and position.barrier is not None and isinstance(position.barrier.granter, Pause)


def is_fragmented(position: Position) -> bool:
    """Whether a new activation should begin, because so many lost appends left holes in this one's numbers."""
    return len(position.seen) > SEEN_RANGES_MAX
