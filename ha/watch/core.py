"""Decides what to do with one watched replica: a pure function of its state, the last look at it, and the time.

    Waiting --start--> Starting --live--> Up --ended, or fails its checks--> Stopping --gone--> Waiting
       any, exit code of a person's case --> GaveUp: a person must change something first

Leadership plays no part here. A replica that is not live is restarted, active or passive; one that is live is left
alone. At most one at a time is taken down for failed checks: a stalled machine must not lose all its replicas.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias

from ha.supervision import GiveUp, RestartPolicy, StartAgain, after_end, pause_s
from ha.watch.settings import WatchSettings


@dataclass(frozen=True, slots=True)
class Waiting:
    """Down, until it is time to start it."""

    start_at_s: float
    failures: int = 0


@dataclass(frozen=True, slots=True)
class Starting:
    """Was started, and has not been seen live yet."""

    since_s: float
    failures: int


@dataclass(frozen=True, slots=True)
class Up:
    """Live; the last `missed` checks in a row failed."""

    since_s: float
    failures: int
    missed: int = 0


@dataclass(frozen=True, slots=True)
class Stopping:
    """Was asked to stop, because it failed. `killed`: it did not stop in time and was killed."""

    since_s: float
    failures: int
    killed: bool = False


@dataclass(frozen=True, slots=True)
class GaveUp:
    """Left alone until a person has done something and starts the watch again."""

    reason: str


State: TypeAlias = Waiting | Starting | Up | Stopping | GaveUp


@dataclass(frozen=True, slots=True)
class Seen:
    """The result of a look at a replica. `answers`: something listens on its health port, live or not.

    `ended`: it was our child and has ended, with `exit_code`. A replica run by the operator's commands is no child.
    """

    live: bool
    answers: bool
    ended: bool = False
    exit_code: int | None = None


class Act(Enum):
    """What the driver does."""

    START = "start"
    STOP = "stop"
    RESTART = "restart"  # by the command that does both
    KILL = "kill"


@dataclass(frozen=True, slots=True)
class Decision:
    """The next state, what to do, and what to report to people; the last two are mostly empty."""

    state: State
    act: Act | None = None
    message: str | None = None


def begin(now_s: float) -> State:
    """The first state: the replica is down, or runs already. The first look shows which."""
    return Waiting(now_s)


def step(
    state: State,
    seen: Seen,
    now_s: float,
    settings: WatchSettings,
    restarts: RestartPolicy,
    *,
    may_take_down: bool,
) -> Decision:
    """Decide for one replica. `may_take_down`: no other replica is stopping or starting because it failed."""
    if seen.ended and not isinstance(state, GaveUp):
        after = after_end(seen.exit_code, state.failures, now_s, restarts)
        if isinstance(after, GiveUp):
            return Decision(GaveUp("configuration"), message="a person is needed: see its log; it is left alone")
        if isinstance(state, Starting | Up):
            return _ended(state, seen, after)
    return _unended(state, seen, now_s, settings, restarts, may_take_down=may_take_down)


def _ended(state: Starting | Up, seen: Seen, after: StartAgain) -> Decision:
    what = f"ended with code {seen.exit_code}" + (" while it started" if isinstance(state, Starting) else "")
    return Decision(Waiting(after.at_s, after.failures), message=f"{what}; starts again in {after.pause_s:g} s")


def _unended(
    state: State, seen: Seen, now_s: float, settings: WatchSettings, restarts: RestartPolicy, *, may_take_down: bool
) -> Decision:
    match state:
        case Waiting():
            return _waiting(state, seen, now_s)
        case Starting():
            return _starting(state, seen, now_s, settings)
        case Up():
            return _up(state, seen, now_s, settings, may_take_down)
        case Stopping():
            return _stopping(state, seen, now_s, settings, restarts)
        case GaveUp():
            return Decision(state)


def _waiting(state: Waiting, seen: Seen, now_s: float) -> Decision:
    if seen.live:
        return Decision(Up(now_s, state.failures), message="runs already")
    if now_s < state.start_at_s:
        return Decision(state)
    return Decision(Starting(now_s, state.failures), Act.START, "starts")


def _starting(state: Starting, seen: Seen, now_s: float, settings: WatchSettings) -> Decision:
    if seen.live:
        return Decision(Up(now_s, state.failures), message="is live")
    if now_s - state.since_s >= settings.start_max_s:
        message = f"is not live {settings.start_max_s:g} s after its start; stops"
        return Decision(Stopping(now_s, state.failures + 1), Act.STOP, message)
    return Decision(state)


def _up(state: Up, seen: Seen, now_s: float, settings: WatchSettings, may_take_down: bool) -> Decision:
    if seen.live:
        steady = now_s - state.since_s >= settings.steady_after_s
        return Decision(replace(state, missed=0, failures=0 if steady else state.failures))
    missed = state.missed + 1
    if missed < settings.failures_max or not may_take_down:
        return Decision(replace(state, missed=missed))
    message = f"failed {missed} checks in a row"
    if settings.restart_command is not None:
        return Decision(Starting(now_s, state.failures + 1), Act.RESTART, f"{message}; restarts")
    return Decision(Stopping(now_s, state.failures + 1), Act.STOP, f"{message}; stops")


def _stopping(state: Stopping, seen: Seen, now_s: float, settings: WatchSettings, restarts: RestartPolicy) -> Decision:
    gone = seen.ended or not seen.answers
    if gone:
        return Decision(Waiting(now_s + pause_s(state.failures, restarts), state.failures))
    if not state.killed and now_s - state.since_s >= settings.stop_max_s:
        message = f"has not ended {settings.stop_max_s:g} s after it was stopped; it is killed"
        return Decision(replace(state, killed=True), Act.KILL, message)
    return Decision(state)
