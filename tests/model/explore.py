"""Look at every reachable state, nearest first, so that the first one found has a shortest schedule."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from tests.model.protocol import State, successors
from tests.model.reading import Design, Scenario

STATES_MAX = 500_000


@dataclass(frozen=True, slots=True)
class Found:
    """What an exploration found: `schedule` leads to `what`; None when nothing was found in the whole space."""

    states: int
    what: str | None = None
    schedule: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.what is None:
            return f"nothing in {self.states:,} states, all there are"
        steps = "\n".join(f"  {number}. {step}" for number, step in enumerate(self.schedule, 1))
        return f"{self.what}, after {len(self.schedule)} steps and {self.states:,} states:\n{steps}"


def explore(design: Design, scenario: Scenario, looks_for: Callable[[State], str | None]) -> Found:
    """Breadth first from the empty system, until `looks_for` names a state or all states were seen.

    Raises RuntimeError when there are more than STATES_MAX.
    """
    start = State()
    came_from: dict[State, tuple[State, str] | None] = {start: None}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        what = looks_for(state)
        if what is not None:
            return Found(len(came_from), what, _schedule(state, came_from))
        for step, following in successors(state, design, scenario):
            if following not in came_from:
                came_from[following] = (state, step)
                queue.append(following)
        if len(came_from) > STATES_MAX:
            raise RuntimeError(f"more than {STATES_MAX} states")
    return Found(len(came_from))


def _schedule(state: State, came_from: dict[State, tuple[State, str] | None]) -> tuple[str, ...]:
    steps = []
    while (step := came_from[state]) is not None:
        state, name = step
        steps.append(name)
    return tuple(reversed(steps))
