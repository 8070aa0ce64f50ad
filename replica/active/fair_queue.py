"""The queue in front of the log: one lane for each user, served in turns. Pure.

Deficit round robin: each turn gives a lane credit for so many states, and the lane sends while it has credit. It may
overdraw by at most one submission, which its next turns pay for. So a user who sends much delays only their own
requests, whatever their size.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from replica.notary.shares import may_take

Item = TypeVar("Item")
TURN_STATES = 400  # large enough to keep neighbours of one user together, small enough to change users often


class _Lane(Generic[Item]):
    __slots__ = ("credit", "items", "states")

    def __init__(self) -> None:
        self.items: deque[tuple[int, Item]] = deque()
        self.states = 0
        self.credit = 0


class FairQueue(Generic[Item]):
    """Items by user. A lane exists while it has items, so there are never more lanes than items."""

    def __init__(self, lane_items_max: int, lane_states_max: int) -> None:
        self._lane_items_max = lane_items_max
        self._lane_states_max = lane_states_max
        self._lanes: dict[str, _Lane[Item]] = {}
        self._turns: deque[str] = deque()  # users with items; the first one's turn it is
        self._count = 0
        self.states = 0

    def __len__(self) -> int:
        return self._count

    def has_room(self, user: str, states: int, free: tuple[int, int], sharers: int = 1) -> bool:
        """Whether the user's lane has room for so many more states; an empty one takes anything.

        `free`: items and states that are free in all; a lane leaves as much of them as it has. `sharers`: so many
        queues, this one among them, have lanes for the same users now.
        """
        lane = self._lanes.get(user)
        return lane is None or (
            len(lane.items) * sharers < self._lane_items_max
            and (lane.states + states) * sharers <= self._lane_states_max
            and may_take(1, len(lane.items), free[0])
            and may_take(states, lane.states, free[1])
        )

    def push(self, user: str, item: Item, states: int) -> None:
        """Queue an item; ask `has_room` before."""
        lane = self._lanes.get(user)
        if lane is None:
            lane = self._lanes[user] = _Lane()
            self._turns.append(user)
        lane.items.append((states, item))
        lane.states += states
        self.states += states
        self._count += 1

    def take(self, items_max: int, states_max: int) -> list[Item]:
        """The next items, in turns; at least one if there is any, and no further one past either bound."""
        taken: list[Item] = []
        states_taken = 0
        while self._turns and len(taken) < items_max and states_taken < states_max:
            user = self._turns[0]
            lane = self._lanes[user]
            if lane.credit <= 0:
                lane.credit += TURN_STATES
                if lane.credit <= 0:  # still paying for a large one
                    self._turns.rotate(-1)
                    continue
            states, item = lane.items.popleft()
            taken.append(item)
            states_taken += states
            lane.states -= states
            lane.credit -= states
            if not lane.items:
                del self._lanes[user]
                self._turns.popleft()
            elif lane.credit <= 0:
                self._turns.rotate(-1)
        self._count -= len(taken)
        self.states -= states_taken
        return taken

    def clear(self) -> list[Item]:
        """Empty the queue; returns what was in it."""
        items = [item for lane in self._lanes.values() for _, item in lane.items]
        self._lanes.clear()
        self._turns.clear()
        self._count = self.states = 0
        return items
