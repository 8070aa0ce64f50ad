"""What a node keeps, sends and asks of its driver: entries, the messages, and effects.

CCF's messages say "term" where its states say "view"; here it is "view" throughout. A view is one leadership.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, TypeAlias

import msgspec

NodeId: TypeAlias = str


class Kind(IntEnum):
    """All that the core knows of an entry. Only a signature can be committed, and all before it with it."""

    RAW = 0
    SIGNATURE = 1
    RECONFIGURATION = 2  # `nodes`: the members from here on
    RETIRED_COMMITTED = 3  # `nodes`: members whose removal is committed, and known to be by every later leader


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One entry of the log. (view, idx) is its TxID: two entries with the same one are the same entry."""

    view: int
    idx: int  # the first is 1
    kind: Kind = Kind.RAW
    body: bytes = b""  # opaque
    nodes: tuple[NodeId, ...] = ()


class TxId(NamedTuple):
    """A place in the log. They compare as logs do: the later view is ahead, then the longer log."""

    view: int
    idx: int


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    view: int  # the sender's, as it sends


class AppendEntries(_Message, frozen=True, tag="AE"):
    """A leader's entries (prev_idx, idx], all of one view; none of them is a heartbeat.

    The core fills in the header only: the driver puts the entries in as it sends, from the log as it is then.
    """

    prev_idx: int
    prev_view: int
    idx: int
    view_of_idx: int
    leader_commit_idx: int
    entries: tuple[Entry, ...] = ()
    round: int = 0  # the newest that the leader has asked


class AppendResponse(_Message, frozen=True, tag="AER"):
    """`success`: the sender's log agrees with the leader's up to `last_log_idx`, which is the idx it was sent.

    Otherwise (view, last_log_idx) is an estimate of where the logs still agree; `view` may then be an old one.
    """

    last_log_idx: int
    success: bool
    round: int = 0  # of the message that this answers


class _Candidacy(_Message, frozen=True):
    last_committable_idx: int  # of the last signature, not of the last entry
    view_of_last_committable: int


class RequestVote(_Candidacy, frozen=True, tag="RV"):
    """A candidate asks for the vote in its view."""


class RequestPreVote(_Candidacy, frozen=True, tag="RPV"):
    """Would you vote for me? Asked in the present view, and nothing is recorded."""


class VoteResponse(_Message, frozen=True, tag="RVR"):
    granted: bool


class PreVoteResponse(_Message, frozen=True, tag="RPVR"):
    granted: bool


class ProposeRequestVote(_Message, frozen=True, tag="PRV"):
    """The leader of this view asks the receiver to stand for election now."""


class Expelled(_Message, frozen=True, tag="EXP"):
    """The receiver has less than it once acknowledged: its disk was set back. It must stop, and join as a new id."""


Message: TypeAlias = (
    AppendEntries
    | AppendResponse
    | RequestVote
    | VoteResponse
    | ProposeRequestVote
    | RequestPreVote
    | PreVoteResponse
    | Expelled
)


class HardState(NamedTuple):
    """What a node that may restart must find again, beside its log."""

    view: int
    voted_for: NodeId | None
    commit_idx: int  # a lower bound; need not be synced for its own sake


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message, and what must be on disk before it is sent.

    Every message: the newest hard state taken so far. `durable_idx` above 0: the log too, up to there. What must be
    durable is the state as of the message or any later one: an entry that was truncated meanwhile need not come back.
    """

    to: NodeId
    message: Message
    durable_idx: int = 0


@dataclass(slots=True)
class Effects:
    """What a driver carries out, in this order: hard state, truncation, appends, then messages as they become safe."""

    hard_state: HardState | None = None
    truncated_to: int | None = None  # entries above this are gone; then `appended` follows
    appended: list[Entry] = field(default_factory=list)
    committed_idx: int | None = None
    messages: list[Outgoing] = field(default_factory=list)
    cleanup: tuple[NodeId, ...] = ()  # a leader's driver should replicate RETIRED_COMMITTED for these
