"""The frames of the Unix-socket link: a 4-byte big-endian length, then one MessagePack array that begins with its kind.

Both sides begin with a `Hello`. A batch is split into frames only between items, so one item must fit into a frame; the
limits of a request ensure that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar, cast

import msgspec

from replica.link.interface import (
    DEFAULT_OPTIONS,
    LogQuestion,
    PeerSeen,
    Standing,
    SubmitOptions,
    TicketedAnswer,
    TicketedLookUp,
    TicketedSubmission,
)
from replica.notary.requests import Offset
from replica.notary.untrusted import UNREADABLE
from replica.telemetry.counts import ApiCounts

PROTOCOL = 1
_SIZE_BYTES = 4


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """The sender, and its core generation: a front end and a core of different generations disconnect at once."""

    protocol: Offset
    generation: str
    name: str


class Submit(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Front end to core."""

    batch: list[TicketedSubmission]
    options: SubmitOptions = DEFAULT_OPTIONS


class LookUp(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Front end to core."""

    batch: list[TicketedLookUp]


class Report(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Front end to core: all it has counted since its start."""

    counts: ApiCounts


class Answers(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Core to front end."""

    batch: list[TicketedAnswer]


class Word(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Core to front end: its role, on every change and several times a second. So silence shows that a core hangs."""

    standing: Standing


class Wait(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Core to front end: the answers to these tickets may take this long."""

    tickets: list[int]
    wait_s: float


class AskLog(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """Front end to core."""

    ticket: Offset
    question: LogQuestion


class Peers(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """Core to front end: what it saw of the other replicas, after each look."""

    seen: list[PeerSeen]


FromFrontEnd = Hello | Submit | LookUp | Report | AskLog
FromCore = Hello | Answers | Word | Wait | Peers
Frame = TypeVar("Frame")
Item = TypeVar("Item")
_encoder = msgspec.msgpack.Encoder()


class LinkBroken(Exception):
    """The other side broke the protocol of the link, or is of another generation: the connection is cut."""


def encode_frame(frame: FromFrontEnd | FromCore, frame_max_bytes: int) -> bytes:
    """The bytes of one frame. Raises LinkBroken when it is too large for the other side."""
    body = _encoder.encode(frame)
    if len(body) > frame_max_bytes:
        raise LinkBroken(f"a frame of {len(body)} bytes, the limit is {frame_max_bytes}")
    return len(body).to_bytes(_SIZE_BYTES, "big") + body


def encode_batch(
    make: Callable[[list[Item]], FromFrontEnd | FromCore], batch: Sequence[Item], frame_max_bytes: int
) -> Iterator[bytes]:
    """The frames that carry a batch: one, unless that would be too large."""
    try:
        yield encode_frame(make(list(batch)), frame_max_bytes)
    except LinkBroken:
        if len(batch) == 1:
            raise
        middle = len(batch) // 2
        yield from encode_batch(make, batch[:middle], frame_max_bytes)
        yield from encode_batch(make, batch[middle:], frame_max_bytes)


class FrameProtocol(asyncio.Protocol, Generic[Frame]):
    """One end of a link connection. It cuts the stream into frames and passes them to `received`.

    A frame that is too large or cannot be read ends the connection, and so does a LinkBroken from `received`; `broken`
    gives the reason. Any other exception of `received` is a bug and goes to the event loop.
    """

    def __init__(self, decoder: msgspec.msgpack.Decoder[Frame], frame_max_bytes: int) -> None:
        self._decoder = decoder
        self._frame_max_bytes = frame_max_bytes
        self._unread = bytearray()
        self.transport: asyncio.Transport | None = None
        self.broken: str | None = None

    def received(self, frame: Frame) -> None:
        """Act on a frame of the other side."""
        raise NotImplementedError

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._unread += data
        try:
            for frame in self._frames():
                self.received(frame)
        except LinkBroken as error:
            self.cut(str(error))

    def cut(self, why: str) -> None:
        """End the connection at once; unsent bytes are dropped. May be repeated."""
        if self.transport is not None and not self.transport.is_closing():
            self.broken = why
            self.transport.abort()

    def _frames(self) -> Iterator[Frame]:
        unread, at = self._unread, 0
        try:
            while len(unread) - at >= _SIZE_BYTES:
                size = int.from_bytes(unread[at : at + _SIZE_BYTES], "big")
                if size > self._frame_max_bytes:
                    raise LinkBroken(f"a frame of {size} bytes, the limit is {self._frame_max_bytes}")
                start, end = at + _SIZE_BYTES, at + _SIZE_BYTES + size
                if len(unread) < end:
                    return
                at = end
                try:
                    yield self._decoder.decode(bytes(unread[start:end]))
                except UNREADABLE as error:
                    raise LinkBroken(f"a frame cannot be read: {error}") from None
        finally:
            del unread[:at]
