"""The messages on the socket: frames of MessagePack, each after its length as four bytes, big-endian.

A connection begins with a Hello, which fixes its use. Each frame of a client gets one Answer, in order.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Any, Literal, TypeVar

import msgspec

from replica.notary import errors
from replica.notary.codes import Code
from replica.notary.errors import LogUnavailable, NotaryError

FRAME_MAX_BYTES = 1 << 28
ANSWER_BYTES = 1 << 23  # of records in one answer; its first record may exceed this
_LENGTH = struct.Struct(">I")

T = TypeVar("T")


class Hello(msgspec.Struct, frozen=True):
    """The use of a connection. `log_id`: the id of the log that is meant; empty: whichever log is there."""

    use: Literal["ask", "read", "append"]
    log_id: str
    start_offset: int = 0


class Question(msgspec.Struct, frozen=True):
    """On a connection to `ask`. `first` and `end` are those of a stretch."""

    about: Literal["check", "hazards", "end", "agreed_end", "survey", "stretch"]
    first: int = 0
    end: int = 0


class Wanted(msgspec.Struct, frozen=True):
    """On a connection to `read`: the next records."""

    max_records: int
    wait_s: float


class Answer(msgspec.Struct, frozen=True):
    """A result, or the name of an error class with its message."""

    result: Any = None
    error: tuple[str, str, str] | None = None

    @staticmethod
    def failed(error: NotaryError) -> Answer:
        """The answer that raises the same error at the client."""
        return Answer(error=(type(error).__name__, error.detail, error.code.name))

    def take(self) -> Any:
        """The result. Raises the error that the server raised."""
        if self.error is None:
            return self.result
        name, detail, code = self.error
        kind = getattr(errors, name, None)
        if not (isinstance(kind, type) and issubclass(kind, NotaryError)):
            kind = LogUnavailable
        raise kind(detail, Code[code])


def frame(message: object) -> bytes:
    """The bytes of a message on the socket."""
    body = msgspec.msgpack.encode(message)
    return _LENGTH.pack(len(body)) + body


async def read_frame(reader: asyncio.StreamReader, kind: type[T]) -> T:
    """The next message. Raises LogUnavailable when the connection has ended, or sends something else."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if length > FRAME_MAX_BYTES:
            raise LogUnavailable(f"a frame of {length} bytes; the limit is {FRAME_MAX_BYTES}")
        return msgspec.msgpack.decode(await reader.readexactly(length), type=kind)
    except (OSError, asyncio.IncompleteReadError, msgspec.MsgspecError) as error:
        raise LogUnavailable(
            f"the connection to the log in memory has ended: {error or type(error).__name__}"
        ) from None
