"""What a node keeps, sends and asks of its driver: entries, the messages, and effects.

CCF's messages name "term" what its states name "view". Here it is always "view". A view is one leadership.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, TypeAlias

import msgspec

NodeId: TypeAlias = str


class Kind(IntEnum):
    """All that the core knows about an entry. Only a signature can be committed, and with it everything before it."""

    RAW = 0
    SIGNATURE = 1
    RECONFIGURATION = 2  # `nodes`: the members from here on
    RETIRED_COMMITTED = 3  # `nodes`: members whose removal is committed, and every later leader knows that
    WORD = 4  # as RAW to the core; drivers tell it from a record


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One entry of the log. (view, idx) is its TxID: two entries with the same one are the same entry."""

    view: int
    idx: int  # the first is 1
    kind: Kind = Kind.RAW
    body: bytes = b""  # opaque
    nodes: tuple[NodeId, ...] = ()


class TxId(NamedTuple):
    """A place in the log. TxIds compare as logs do: the later view wins, then the longer log."""

    view: int
    idx: int


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    view: int  # the sender's, as it sends


class AppendEntries(_Message, frozen=True, tag="AE"):
    """A leader's entries (prev_idx, idx], all of one view; none of them is a heartbeat.

    The core fills in the header only. The driver adds the entries when it sends, from the log as it is then.
    """

    prev_idx: int
    prev_view: int
    idx: int
    view_of_idx: int
    leader_commit_idx: int
    entries: tuple[Entry, ...] = ()
    round: int = 0  # the newest that the leader has asked


class AppendResponse(_Message, frozen=True, tag="AER"):
    """`success`: the sender's log agrees with the leader's up to `last_log_idx`, the idx of the message it answers.

    Otherwise (view, last_log_idx) is an estimate of the last place where the logs agree; `view` may be an old one.
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
    """Asks whether the receiver would vote for the sender. Sent in the present view; nothing is recorded."""


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
    """What a node needs after a restart, apart from its log."""

    view: int
    voted_for: NodeId | None
    commit_idx: int  # a lower bound; a change of it alone needs no sync


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message, and what must be on disk before it is sent.

    Every message needs the newest hard state taken so far. `durable_idx` above 0: also the log up to there. The state
    as of the message or any later state must be durable: an entry that was truncated since need not be on disk.
    """

    to: NodeId
    message: Message
    durable_idx: int = 0


@dataclass(slots=True)
class Effects:
    """What a driver carries out, in this order: hard state, truncation, appends, then messages as they become safe."""

    hard_state: HardState | None = None
    truncated_to: int | None = None  # entries above this are cut; `appended` comes after
    appended: list[Entry] = field(default_factory=list)
    committed_idx: int | None = None
    messages: list[Outgoing] = field(default_factory=list)
    cleanup: tuple[NodeId, ...] = ()  # a leader's driver should replicate RETIRED_COMMITTED for these
