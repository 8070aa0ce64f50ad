"""States, events and actions of the election. core.py decides what follows from them.

A state holds only what is true in it: a passive replica has no confirmation. Each event of a lock session carries the
session's number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias, TypedDict

from ha.ending import STOPPED, Ending
from ha.lock.interface import NEVER_S, LockOwner


@dataclass(frozen=True, slots=True)
class Readiness:
    """How fit a passive replica is to lead. `lag_records`: how many records its index lags the log it last saw.

    A disconnected standby does not know. It reports (True, 0), and finds out when it activates. `barred`: this replica
    may never lead, or operators have paused fail-over, and it is not the one that keeps leading.
    """

    reaches_log: bool
    lag_records: int
    barred: bool = False


# ------------------------------------------------------------------------------------------------------------- states


class Link(Enum):
    """What a passive replica does with its lock session."""

    DOWN = "down"  # none; open one at `next_at_s`
    OPENING = "opening"
    IDLE = "idle"  # open; poll at `next_at_s`
    ASKING = "asking"  # one question is on its way


@dataclass(frozen=True, slots=True)
class Offer:
    """The lock was released for this replica. If this replica fails before `until_s`, the giver is next."""

    by: str
    until_s: float


@dataclass(frozen=True, slots=True)
class Passive:
    """Waits, and asks for the lock when it may."""

    session: int  # the number of the session in use, or of the last one
    link: Link
    next_at_s: float
    hold_until_s: float  # does not ask before
    failures: int = 0  # sessions in a row that could not be opened
    free_since_s: float | None = None  # since when the lock has been seen free
    reserved_until_s: float = NEVER_S  # the lock was released for another replica, which has until then
    noted: bool = False  # a release was announced while a question was on its way: its answer may be out of date
    skip_grace: bool = False  # the lock was released on purpose, or was ours until it was interrupted
    handing_over: bool = False  # gave the lock up for a switchover, and nobody was seen taking it yet
    takes_back_until_s: float = NEVER_S  # gave it up for a switchover; undone if it comes back before this
    interrupted_at_s: float = NEVER_S  # when its session ended last while it led


@dataclass(frozen=True, slots=True)
class Activating:
    """Holds the lock; the service becomes active."""

    session: int
    since_s: float
    answered_at_s: float  # when the latest answered statement was sent
    confirm_at_s: float
    confirming: bool = False
    undoing: bool = False  # takes back a switchover that nobody accepted
    offer: Offer | None = None
    interrupted_at_s: float = NEVER_S


@dataclass(frozen=True, slots=True)
class Active:
    """Holds the lock, and serves."""

    session: int
    answered_at_s: float
    confirm_at_s: float
    confirming: bool = False
    interrupted_at_s: float = NEVER_S


class After(Enum):
    """What a replica does when it has stepped down."""

    RACE = "race"  # its session was interrupted: it may take the lock again at once
    HOLD_DOWN = "hold down"  # it failed: others first
    HAND_OVER = "hand over"  # a switchover: others first, and take back if none comes
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class SteppingDown:
    """The service becomes passive; the lock is let go afterwards."""

    session: int
    deadline_s: float
    after: After


@dataclass(frozen=True, slots=True)
class Ended:
    """Nothing more to decide."""

    session: int


State: TypeAlias = Passive | Activating | Active | SteppingDown | Ended

# ------------------------------------------------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed. `answered_at_s` and `clock_skew_s` are those of the session in use."""

    readiness: Readiness
    answered_at_s: float
    clock_skew_s: float


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """The session is open and checked."""

    session: int


@dataclass(frozen=True, slots=True)
class SessionFailed:
    """A session could not be opened. `retry` False: it cannot be opened before a person changes something."""

    session: int
    reason: str
    retry: bool


@dataclass(frozen=True, slots=True)
class LockSeen:
    """The lock is free (`owner` None, not `refused`), or it is held; `own`: by an earlier session of ours.

    `reserved`: it was released on purpose, for another replica than this one.
    """

    session: int
    owner: LockOwner | None
    own: bool = False
    refused: bool = False
    released_on_purpose: bool = False
    reserved: bool = False


@dataclass(frozen=True, slots=True)
class ReleaseNoted:
    """Another replica has just given the lock up on purpose; `reserved`: for another one than this."""

    session: int
    reserved: bool


@dataclass(frozen=True, slots=True)
class LockGranted:
    """The lock is ours; the lease counts from when we asked.

    `reserved`: it was released for another replica, and this question crossed with the note. `given_by`: the replica
    that released it for this one.
    """

    session: int
    asked_at_s: float
    reserved: bool = False
    given_by: str | None = None


@dataclass(frozen=True, slots=True)
class LockConfirmed:
    """The server says that the lock is still ours, as of when we asked."""

    session: int
    asked_at_s: float


@dataclass(frozen=True, slots=True)
class SessionLost:
    """The session is gone, or no answer came. The lock may have been granted and the answer lost: end the session."""

    session: int
    reason: str


@dataclass(frozen=True, slots=True)
class Activated:
    """The service is active, its API accepts."""

    session: int


@dataclass(frozen=True, slots=True)
class NotActivated:
    """The service could not become active."""

    session: int
    ending: Ending


@dataclass(frozen=True, slots=True)
class SteppedDown:
    """The service is passive and the session is closed."""

    session: int


@dataclass(frozen=True, slots=True)
class Crashed:
    """A step-down failed, or a task ended with an error that no task may end with."""

    reason: str


@dataclass(frozen=True, slots=True)
class StepDownWanted:
    """The service asks to be relieved: its log stalled, it read a higher barrier, its key cannot be used."""

    ending: Ending


@dataclass(frozen=True, slots=True)
class SwitchoverWanted:
    """An operator asks this replica to hand over, perhaps to a certain other one."""

    to: str | None = None


@dataclass(frozen=True, slots=True)
class StopWanted:
    """The process is asked to end in order, or one of its parts failed."""

    ending: Ending = STOPPED


SessionEvent: TypeAlias = (
    SessionOpened
    | SessionFailed
    | LockSeen
    | ReleaseNoted
    | LockGranted
    | LockConfirmed
    | SessionLost
    | Activated
    | NotActivated
    | SteppedDown
)
Event: TypeAlias = Tick | SessionEvent | Crashed | StepDownWanted | SwitchoverWanted | StopWanted

# ------------------------------------------------------------------------------------------------------------ actions


@dataclass(frozen=True, slots=True)
class OpenSession:
    """Make a new session with this number, and open it."""

    session: int


@dataclass(frozen=True, slots=True)
class TryLock:
    """Ask for the lock."""

    session: int


@dataclass(frozen=True, slots=True)
class Look:
    """Ask who has the lock."""

    session: int


@dataclass(frozen=True, slots=True)
class ConfirmLock:
    """Ask whether the lock is still ours."""

    session: int


@dataclass(frozen=True, slots=True)
class CloseSession:
    """Close the session, and with it whatever lock it holds."""

    session: int


@dataclass(frozen=True, slots=True)
class Activate:
    """Start to become active; the lock stays confirmed meanwhile."""

    session: int


@dataclass(frozen=True, slots=True)
class StepDown:
    """Interrupt an activation if one runs, make the service passive, let the lock go; `release`: on purpose.

    `to`: the replica that it is released for; the others let it go first.
    """

    session: int
    ending: Ending
    release: bool
    to: str | None = None


class Handover(Enum):
    """How a switchover ended."""

    TAKEN_OVER = "taken over"
    UNDONE = "undone"  # nobody took the lock; this replica is active again
    NOT_ACTIVE = "not active"  # there was nothing to hand over
    FAILED = "failed"  # nobody was seen taking the lock, and this replica did not become active again either


@dataclass(frozen=True, slots=True)
class ReportHandover:
    """Report how a switchover ended to the caller who asked for it."""

    outcome: Handover
    owner: LockOwner | None = None


@dataclass(frozen=True, slots=True)
class EndProcess:
    """It is unknown what still runs. The process must end, and its supervisor start another."""

    reason: str


Action: TypeAlias = (
    OpenSession | TryLock | Look | ConfirmLock | CloseSession | Activate | StepDown | ReportHandover | EndProcess
)


class ElectionStatus(TypedDict):
    """The election as the health page shows it: role, session, and ages in seconds."""

    role: str
    leading: bool
    lock_session: int
    lock_session_open: bool
    lock_answer_age_s: float | None  # since the newest answered statement was sent
    lock_owner: str | None
    lock_lease: Mapping[str, object] | None  # a `ServerLease`; None without a session
    clock_skew_s: float
    hold_down_s: float
