"""Explores every reachable state in breadth-first order, so that the first violation found has a shortest schedule."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from tests.model.protocol import State, successors
from tests.model.reading import Design, Scenario

STATES_MAX = 500_000
_State = TypeVar("_State", bound=Hashable)


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
    """`search` in the model of the protocol, from the empty system."""
    return search(State(), lambda state: successors(state, design, scenario), looks_for)


def search(
    start: _State,
    following: Callable[[_State], Iterable[tuple[str, _State]]],
    looks_for: Callable[[_State], str | None],
) -> Found:
    """Breadth first from `start`, until `looks_for` names a state or all states were seen.

    `following` gives each state that can come next, with the name of the step. Raises RuntimeError when there are more
    than STATES_MAX states.
    """
    came_from: dict[_State, tuple[_State, str] | None] = {start: None}
    queue = deque([start])
    while queue:
        state = queue.popleft()
        what = looks_for(state)
        if what is not None:
            return Found(len(came_from), what, _schedule(state, came_from))
        for step, after in following(state):
            if after not in came_from:
                came_from[after] = (state, step)
                queue.append(after)
        if len(came_from) > STATES_MAX:
            raise RuntimeError(f"more than {STATES_MAX} states")
    return Found(len(came_from))


def _schedule(state: _State, came_from: dict[_State, tuple[_State, str] | None]) -> tuple[str, ...]:
    steps = []
    while (step := came_from[state]) is not None:
        state, name = step
        steps.append(name)
    return tuple(reversed(steps))
