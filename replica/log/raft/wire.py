"""What travels between nodes, and between clients and a node: a 4-byte big-endian length, then one MessagePack array.

Both sides begin with a `Hello`. A side that does not accept it answers with a `Refusal` and the reason, and closes.
Then a node sends messages of the core, and a client sends calls. A node's answers come over its own connection.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from ha.raft.messages import AppendEntries, Entry, Kind, Message, NodeId, TxId
from ha.raft.tx_status import TxStatus
from replica.log.raft.notes import Seal
from replica.notary.codes import Code
from replica.notary.untrusted import UNREADABLE
from replica.notary.words import NewWord, Word, encode_word

PROTOCOL = 1
HELLO_MAX_BYTES = 1_024
_SIZE_BYTES = 4
_ENTRY_OVERHEAD_BYTES = 40  # of an entry in a frame, beside its body and nodes; at most
_NODE_MAX_BYTES = 133  # of an id in it
_BODIES_MAX = 20_000
PIECE_MAX_BYTES = 2**20  # of a file, in one answer
VIEWS_MAX = 1_000  # of a view history, in one answer
READ_MAX = 1_024  # entries in one answer: heartbeats wait while it is made
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_Text = Annotated[str, msgspec.Meta(max_length=128)]
_ActivationId = Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]

_UNKNOWN_KIND = re.compile(r"^Invalid enum value \d+")  # msgspec's words; the other enumerations here have texts
_encoder = msgspec.msgpack.Encoder()


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="HI"):
    """The sender."""

    protocol: _Count
    group: _Text
    role: Literal["node", "client"]
    node_id: _Text = ""  # of a node; of a client the name of the replica that it is the core of, if any
    key: Annotated[bytes, msgspec.Meta(max_length=32)] = b""  # a node's public key
    log_id: Annotated[str, msgspec.Meta(max_length=64)] = ""  # of a node that has its first entry


class Refusal(msgspec.Struct, frozen=True, array_like=True, tag="NO"):
    """Why a connection is refused."""

    why: str


class Append(msgspec.Struct, frozen=True, array_like=True, tag="append"):
    """Append bodies as entries, one after the other. Answered once all of them are committed, or can never be.

    `early`: an `AppendedHere` comes first, as soon as the leader's log has them. A node of an older release leaves it
    out.
    """

    call: _Count
    bodies: Annotated[tuple[bytes, ...], msgspec.Meta(min_length=1, max_length=_BODIES_MAX)]
    early: bool = False


class Read(msgspec.Struct, frozen=True, array_like=True, tag="read"):
    """Committed entries from `first_idx` on, from this node's own disk; as many as fit into the answer."""

    call: _Count
    first_idx: Annotated[int, msgspec.Meta(ge=1, le=2**53)]
    last_idx: _Count = 0  # 0: as many as there are
    wait_ms: Annotated[int, msgspec.Meta(ge=0, le=60_000)] = 0  # if there are none yet


class Status(msgspec.Struct, frozen=True, array_like=True, tag="status"):
    """Ask for the node's state."""

    call: _Count


class Change(msgspec.Struct, frozen=True, array_like=True, tag="change"):
    """Make these ids the members. Answered once that is committed."""

    call: _Count
    nodes: Annotated[tuple[_Text, ...], msgspec.Meta(min_length=1, max_length=64)]
    instead_of: Annotated[
        tuple[_Text, ...], msgspec.Meta(max_length=64)
    ] = ()  # refused if the members are others; (): in place of any


class Place(msgspec.Struct, frozen=True, array_like=True, tag="place"):
    """Where is the record that `offset` others precede, and how many are committed and on this node's disk?"""

    call: _Count
    offset: _Count


class Tx(msgspec.Struct, frozen=True, array_like=True, tag="tx"):
    """What became of the entry `view.idx`, as far as this node knows?"""

    call: _Count
    view: Annotated[int, msgspec.Meta(ge=1, le=2**53)]
    idx: Annotated[int, msgspec.Meta(ge=1, le=2**53)]


class Commit(msgspec.Struct, frozen=True, array_like=True, tag="commit"):
    """What is the newest committed entry, and where do views from `since_view` on begin? 0: leave the views out."""

    call: _Count
    since_view: _Count = 0


class End(msgspec.Struct, frozen=True, array_like=True, tag="end"):
    """Where does the log end? Answered once a majority has confirmed, after the question, that this node leads."""

    call: _Count


class Say(msgspec.Struct, frozen=True, array_like=True, tag="say"):
    """Append an operators' word. Answered with what is in force under its name, once it is committed: perhaps another
    word."""

    call: _Count
    word: NewWord


class AskWords(msgspec.Struct, frozen=True, array_like=True, tag="ask-words"):
    """Which words are in force under names that begin so? Answered as `End` is, so no word before is missing."""

    call: _Count
    prefix: _Text


class Nominate(msgspec.Struct, frozen=True, array_like=True, tag="nominate"):
    """Ask the member of this name to take over. Answered once it was asked; whether it leads is another question."""

    call: _Count
    name: _Text


class FindSealed(msgspec.Struct, frozen=True, array_like=True, tag="find-sealed"):
    """Ask for the sealed segment that has this entry."""

    call: _Count
    idx: Annotated[int, msgspec.Meta(ge=1, le=2**53)]


class ReadSealed(msgspec.Struct, frozen=True, array_like=True, tag="read-sealed"):
    """Bytes of a sealed segment's file."""

    call: _Count
    first_idx: _Count
    at: _Count
    size: Annotated[int, msgspec.Meta(ge=1, le=PIECE_MAX_BYTES)]


class Lifeline(msgspec.Struct, frozen=True, array_like=True, tag="lifeline"):
    """The caller leads, or will, with this activation, and closes the connection only once it does no longer.

    Refused where the connection comes from another machine. A node of an older release ends the connection.
    """

    call: _Count
    activation_id: _ActivationId


class Watch(msgspec.Struct, frozen=True, array_like=True, tag="watch"):
    """Has the process ended that leads with this activation? Answered when it has, or after `wait_ms`."""

    call: _Count
    activation_id: _ActivationId
    wait_ms: Annotated[int, msgspec.Meta(ge=0, le=60_000)] = 0


class Appended(msgspec.Struct, frozen=True, array_like=True, tag="appended"):
    """All of it is committed."""

    call: int
    view: int
    first_idx: int
    last_idx: int


class AppendedHere(msgspec.Struct, frozen=True, array_like=True, tag="appended-here"):
    """All of it is in this leader's log, from `first_idx` on. It may still be lost; the call's own answer follows."""

    call: int
    view: int
    first_idx: int


class Entries(msgspec.Struct, frozen=True, array_like=True, tag="entries"):
    """Entries that are committed, perhaps none, and how far this node's disk has committed ones."""

    call: int
    entries: tuple[Entry, ...]
    commit_idx: int


class Told(msgspec.Struct, frozen=True, array_like=True, tag="told"):
    """The node's state."""

    call: int
    details: dict[str, Any]


class TxTold(msgspec.Struct, frozen=True, array_like=True, tag="tx-told"):
    """`offset`: of a record that is committed; else None."""

    call: int
    status: TxStatus
    committed_view: int
    committed_idx: int
    offset: int | None


class CommitTold(msgspec.Struct, frozen=True, array_like=True, tag="commit-told"):
    """The newest entry that this node knows to be committed, and the first index of each view from the one asked for
    on: committed views only, at most VIEWS_MAX. `wall_us`: the node's clock, microseconds UTC; None: the node is of an
    older build."""

    call: int
    view: int
    idx: int
    starts: tuple[int, ...]
    wall_us: int | None = None


class Placed(msgspec.Struct, frozen=True, array_like=True, tag="placed"):
    """`idx` None: there is no such record here yet."""

    call: int
    idx: int | None
    end_idx: int
    records: int  # up to end_idx


class Ends(msgspec.Struct, frozen=True, array_like=True, tag="ends"):
    """All that was committed before the question is at or below `idx`, and on this node's disk.

    `quiet_ms`: so long ago this node appended the newest record to its log, committed or not. None: before it began to
    run, or the node is of an older release.
    """

    call: int
    view: int
    idx: int
    records: int  # up to idx
    quiet_ms: int | None = None


class WordsTold(msgspec.Struct, frozen=True, array_like=True, tag="words-told"):
    """By name; one that nobody has used is missing."""

    call: int
    words: dict[str, Word]


class Nominated(msgspec.Struct, frozen=True, array_like=True, tag="nominated"):
    """The member was asked, or leads already."""

    call: int


class FoundSealed(msgspec.Struct, frozen=True, array_like=True, tag="found-sealed"):
    """None: this node has sealed no such segment, or it is damaged."""

    call: int
    seal: Seal | None


class SealedBytes(msgspec.Struct, frozen=True, array_like=True, tag="sealed-bytes"):
    """As many as there are; none where there is no such segment."""

    call: int
    data: bytes


class Tied(msgspec.Struct, frozen=True, array_like=True, tag="tied"):
    """This connection's end is the end of the activation."""

    call: int


class Watched(msgspec.Struct, frozen=True, array_like=True, tag="watched"):
    """`ended` False: not that this node knows."""

    call: int
    ended: bool


class Failed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """The call has no effect, and never will have one. `NOT_LEADER`: ask `leader_id`; `OVERLOADED`: later."""

    call: int
    code: Literal["NOT_LEADER", "OVERLOADED", "REFUSED"]
    detail: str
    leader_id: str | None = None


Call: TypeAlias = (
    Append
    | Say
    | Read
    | Status
    | Change
    | End
    | AskWords
    | Place
    | Nominate
    | Tx
    | Commit
    | FindSealed
    | ReadSealed
    | Lifeline
    | Watch
)
Answer: TypeAlias = (
    Appended
    | AppendedHere
    | Entries
    | Told
    | Ends
    | WordsTold
    | Placed
    | Nominated
    | TxTold
    | CommitTold
    | FoundSealed
    | SealedBytes
    | Tied
    | Watched
    | Failed
)
greeting = msgspec.msgpack.Decoder(Hello | Refusal)
messages = msgspec.msgpack.Decoder(Message)
calls = msgspec.msgpack.Decoder(Call)
answers = msgspec.msgpack.Decoder(Answer)


class FrameRefused(Exception):
    """The other side sent bytes that are no frame of this protocol: the connection is cut."""


class KindUnknown(FrameRefused):
    """The other side sent an entry of a kind that only a newer release knows."""

    def __init__(self) -> None:
        super().__init__(
            f"{Code.FORMAT_UNKNOWN.name}: the other side's log has an entry of a kind that this release does not know:"
            " install its release here"
        )


def encode_frame(frame: msgspec.Struct) -> bytes:
    """The bytes of one frame."""
    body = _encoder.encode(frame)
    return len(body).to_bytes(_SIZE_BYTES, "big") + body


class Frames:
    """Cuts a stream into frames. `max_bytes` may be raised once the other side is known."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._unread = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Each whole frame. Raises FrameRefused for one that is too large, before it is read."""
        self._unread += data
        unread, at = self._unread, 0
        try:
            while len(unread) - at >= _SIZE_BYTES:
                size = int.from_bytes(unread[at : at + _SIZE_BYTES], "big")
                if size > self.max_bytes:
                    raise FrameRefused(f"a frame of {size} bytes, the limit is {self.max_bytes}")
                end = at + _SIZE_BYTES + size
                if len(unread) < end:
                    return
                with memoryview(unread) as view:  # copies once
                    frame = bytes(view[at + _SIZE_BYTES : end])
                at = end
                yield frame
        finally:
            del unread[:at]


def decode(decoder: msgspec.msgpack.Decoder[Any], frame: bytes) -> Any:
    """A frame's content. Raises FrameRefused, and KindUnknown."""
    try:
        return decoder.decode(frame)
    except UNREADABLE as error:
        if _UNKNOWN_KIND.search(str(error)):
            raise KindUnknown from None
        raise FrameRefused(f"a frame cannot be read: {str(error)[:200]}") from None


def contents_of(call: Append | Say) -> tuple[Kind, tuple[bytes, ...]]:
    """What a call appends: the kind of its entries, and their bodies."""
    return (Kind.RAW, call.bodies) if isinstance(call, Append) else (Kind.WORD, (encode_word(call.word),))


def size_of(entries: Sequence[Entry]) -> int:
    """An upper bound of the bytes in a frame. One sum for many entries costs much less than one for each."""
    sizes = [len(entry.body) + _NODE_MAX_BYTES * len(entry.nodes) for entry in entries]
    return sum(sizes) + _ENTRY_OVERHEAD_BYTES * len(sizes)


def fitting(entries: Sequence[Entry], limit_bytes: int) -> int:
    """How many of the first of these fit, at least one where there is any."""
    if size_of(entries) <= limit_bytes:
        return len(entries)
    count, size = 0, 0
    for entry in entries:
        size += size_of((entry,))
        if count and size > limit_bytes:
            break
        count += 1
    return count


def fill(header: AppendEntries, entries: list[Entry], frame_max_bytes: int) -> Iterator[AppendEntries]:
    """A leader's message with its entries; several in sequence, if one would be too large."""
    view, left, prev = header.prev_view, entries, header.prev_idx
    while True:
        count = fitting(left, frame_max_bytes - HELLO_MAX_BYTES)
        yield msgspec.structs.replace(
            header, prev_idx=prev, prev_view=view, idx=prev + count, entries=tuple(left[:count])
        )
        left, prev, view = left[count:], prev + count, header.view_of_idx
        if not left:
            return


def name_of(node_id: NodeId) -> str:
    """The name that the operator gave the node with this id."""
    return node_id.rpartition(".")[0]


def gone(header: AppendEntries, entries: list[Entry]) -> bool:
    """Whether the log no longer has the entries that a message names: it was cut since."""
    if len(entries) != header.idx - header.prev_idx:
        return True
    return bool(entries) and TxId(entries[-1].view, entries[-1].idx) != TxId(header.view_of_idx, header.idx)
