"""Whether the protocol allows what real replicas say that they did: their log lines as a walk through the model.

`python -m tests.model.runs LOG...` reads the log files of all replicas of one cluster, from its first start on: of the
lab, the drill or the demo. Lines are merged by their time, which is one host's clock. The lock is a database's: under a
lease a claim is in the log before its replica is told, and other lines would have to be expected.

A line is an observation of the model's state. Between two lines any of the model's steps may be taken, within what
the lines name: a replica gets the lock once for each `activating`, and gives it up once for each line that says so, or
for a new start. That the lock was lost is in nobody's lines. A set of states explains the lines so far; a line after
which none is left is not allowed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tests.model.protocol import Phase, Replica, State, successors
from tests.model.reading import OURS, Scenario, read_all

LEADERSHIP = Scenario((), terms=1_000_000, losses=1)
STATES_MAX = 20_000  # that explain a run so far
_OBSERVED = ("role_changed", "activated", "barrier_in_force", "barrier_void", "replica_started")
_ENDED = ("passive", "ended", "started")


class Line(msgspec.Struct, frozen=True):
    """A line of a replica's core, as far as the model knows of it. `by`: whose barrier came into force."""

    timestamp: str
    who: str
    event: str
    role: str = ""
    epoch: int = 0
    by: str = ""


class Explained(NamedTuple):
    """One way to explain the lines: how often each replica may still take the lock, and give it up."""

    state: State
    may_take: tuple[int, ...]
    may_stop: tuple[int, ...]


class Verdict(NamedTuple):
    """What the model says of a run: how many lines it explains, and the first one that it does not allow."""

    allowed: int
    refused: Line | None = None

    def __str__(self) -> str:
        if self.refused is None:
            return f"{self.allowed} lines, each allowed by the protocol"
        return f"after {self.allowed} lines the protocol does not allow {self.refused}"


def lines_in(paths: Iterable[Path]) -> list[Line]:
    """The observed lines of replicas' log files, a file for each, by time."""
    return sorted((line for path in paths for line in _lines_of(path)), key=lambda line: line.timestamp)


def _lines_of(path: Path) -> Iterator[Line]:
    documents = [document for raw in path.read_bytes().splitlines() if (document := _document(raw))]
    who = next((one["replica"] for one in documents if one["event"] == "replica_started"), "")
    for one in documents:
        event, role = one["event"], one.get("role", "started" if one["event"] == "replica_started" else "")
        if event in _OBSERVED and who:
            by = one["replica"] if event == "barrier_in_force" else ""  # there the name is the barrier's
            yield Line(one["timestamp"], who, event, role, one.get("epoch") or 0, by)


def _document(raw: bytes) -> dict[str, Any]:
    """A line's fields; none for what another program printed, or a kill cut off."""
    with suppress(msgspec.DecodeError):
        found = msgspec.json.decode(raw)
        if isinstance(found, dict) and found.keys() >= {"event", "replica", "timestamp"}:
            return found
    return {}


def judge(lines: Sequence[Line]) -> Verdict:
    """Walk through the model along the lines."""
    names = tuple(sorted({line.who for line in lines}))
    nothing = (0,) * len(names)
    explained = {Explained(State(replicas=tuple(Replica() for _ in names), names=names), nothing, nothing)}
    for number, line in enumerate(lines):
        before = {_allowing(one, line) for one in explained}
        explained = {_noted(one, line) for one in _reachable(before) if _shows(one.state, line)}
        if not explained:
            return Verdict(number, line)
    return Verdict(len(lines))


def _allowing(one: Explained, line: Line) -> Explained:
    """What the line lets happen from now on."""
    at = one.state.names.index(line.who)
    if line.role == "activating" or line.event == "barrier_void":
        one = one._replace(may_take=_set(one.may_take, at, one.may_take[at] + 1))
    if line.role in ("stepping_down", "started") or line.event == "barrier_void":
        one = one._replace(may_stop=_set(one.may_stop, at, one.may_stop[at] + 1))
    return one


def _noted(one: Explained, line: Line) -> Explained:
    """What the line ends: of an activation before it nothing is left to happen."""
    if line.role not in _ENDED:
        return one
    at = one.state.names.index(line.who)
    return one._replace(may_take=_set(one.may_take, at, 0), may_stop=_set(one.may_stop, at, 0))


def _set(counts: tuple[int, ...], at: int, count: int) -> tuple[int, ...]:
    return (*counts[:at], count, *counts[at + 1 :])


def _shows(state: State, line: Line) -> bool:
    """Whether a state is one in which the line is true."""
    replica = state.replicas[state.names.index(line.who)]
    match line.event, line.role:
        case "barrier_in_force", _:
            prefixes = (read_all(state.log[:end], OURS)[0] for end in range(len(state.log) + 1))
            return any((one.epoch, one.in_force and one.in_force.replica) == (line.epoch, line.by) for one in prefixes)
        case ("activated", _) | (_, "active"):
            return replica.phase is Phase.ACTIVE and replica.epoch == line.epoch
        case _, role if role in _ENDED:
            return replica.phase is Phase.PASSIVE
        case _:
            return True


def _reachable(explained: set[Explained]) -> set[Explained]:
    """All that may have happened before the next line. Raises RuntimeError for more than STATES_MAX."""
    seen, waiting = set(explained), list(explained)
    while waiting:
        one = waiting.pop()
        for _, state in successors(one.state, OURS, LEADERSHIP):
            after = _stepped(one, state._replace(losses=0))
            if after is not None and after not in seen:
                seen.add(after)
                waiting.append(after)
        if len(seen) > STATES_MAX:
            raise RuntimeError(f"more than {STATES_MAX} states explain the lines")
    return seen


def _stepped(one: Explained, state: State) -> Explained | None:
    """A step of the model; None if the lines do not let it happen."""
    after = Explained(state, one.may_take, one.may_stop)
    for at, (was, now) in enumerate(zip(one.state.replicas, state.replicas, strict=True)):
        if was.phase is Phase.PASSIVE and now.phase is not Phase.PASSIVE:
            after = after._replace(may_take=_set(after.may_take, at, after.may_take[at] - 1))
        elif was.phase is not Phase.PASSIVE and now.phase is Phase.PASSIVE:
            after = after._replace(may_stop=_set(after.may_stop, at, after.may_stop[at] - 1))
    return None if min(*after.may_take, *after.may_stop) < 0 else after


def main() -> int:
    """1 when the protocol does not allow the run."""
    lines = lines_in(map(Path, sys.argv[1:]))
    if not lines:
        print("usage: python -m tests.model.runs LOG..., of all replicas of one cluster", file=sys.stderr)
        return 2
    verdict = judge(lines)
    print(verdict)
    return 0 if verdict.refused is None else 1


if __name__ == "__main__":
    sys.exit(main())
