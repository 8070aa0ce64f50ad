"""Shares of a bound: how much of it each caller holds, what is free, and who gives way. Pure.

A caller that holds some leaves at least as much free. So one caller takes no more than half of a bound, two no more
than a third each, and whoever comes next finds room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable


def may_take(wanted: int, own: int, free: int) -> bool:
    """Whether a caller that holds `own` may have `wanted` more of what is free.

    The first that it takes only has to fit: otherwise a large call could not be served beside a small one.
    """
    return wanted <= free and (not own or own + wanted <= free - wanted)


class Shares:
    """Who holds how much of a bound. `None` is charged to nobody: only the bound counts for it."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0
        self._by_holder: Counter[Hashable] = Counter()  # holders of nothing are left out, or they would accumulate

    def of(self, holder: Hashable) -> int:
        """What this caller holds."""
        return 0 if holder is None else self._by_holder[holder]

    def has_room(self, holder: Hashable, wanted: int = 1) -> bool:
        """Whether the caller may have more. Where nobody holds anything, it may have any amount, once."""
        return not self.held or may_take(wanted, self.of(holder), self.most - self.held)

    def take(self, holder: Hashable, wanted: int = 1) -> bool:
        """Charge it to the caller, if there is room."""
        if not self.has_room(holder, wanted):
            return False
        self.hold(holder, wanted)
        return True

    def hold(self, holder: Hashable, count: int = 1) -> None:
        """Charge it to the caller: there was room, or somebody gave way."""
        self.held += count
        if holder is not None:
            self._by_holder[holder] += count

    def free(self, holder: Hashable, count: int = 1) -> None:
        """Give back what was taken."""
        self.held -= count
        if holder is None:
            return
        self._by_holder[holder] -= count
        if not self._by_holder[holder]:
            del self._by_holder[holder]

    def gives_way(self, newcomer: Hashable, able: Iterable[Hashable]) -> Hashable | None:
        """Who of the `able` makes room for one more of the newcomer: whoever holds most, and no less than it would.

        None: nobody, so that the newcomer is refused. Among equals it gives way itself.
        """
        own = self.of(newcomer) + 1
        return max(
            (holder for holder in able if holder == newcomer or self.of(holder) >= own),
            key=lambda holder: (own, 1) if holder == newcomer else (self.of(holder), 0),
            default=None,
        )
