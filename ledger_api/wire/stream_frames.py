"""The frames of the submission stream: one MessagePack array in each binary WebSocket message, its kind first.

A submission travels as it is logged: canonical bytes, key, signature, command. Server and client share these types.
Further elements may follow in later releases, and a reader skips those that it does not know.
"""

from __future__ import annotations

import msgspec

from replica.notary.answers import Accepted, Notarised, NotNow, Refused
from replica.notary.requests import DeduplicationS, Offset, Submission

PROTOCOL = "notary.v1"  # the WebSocket subprotocol
VERSION = 1
Number = Offset
"""The client's number for one of its submissions; the answer has the same number."""


class Rejected(msgspec.Struct, frozen=True, tag="rejected"):
    """The submission cannot be taken as it is; nothing was logged. `code` is in the error catalogue."""

    code: str
    detail: str


StreamAnswer = Notarised | Refused | NotNow | Accepted | Rejected


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """Server to client, first: `window` submissions may be without an answer, `batch_max` of them in a frame."""

    version: int
    window: int
    batch_max: int
    replica: str
    notary_key: bytes


class Submissions(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Client to server: submissions to be logged in this order, with the same options (see POST /v1/submissions)."""

    batch: list[tuple[Number, Submission]]
    asynchronous: bool = False
    deduplication_s: DeduplicationS | None = None
    deduplication_after: Offset = 0


class Answers(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Server to client: one answer for each submission, in any order."""

    batch: list[tuple[Number, StreamAnswer]]


class Waits(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Server to client, an interim estimate: the answers to these may take `wait_s`. They still follow."""

    numbers: list[Number]
    wait_s: float


class Closing(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Server to client, last: why the stream ends. What has no answer is to be sent again, with the same ids."""

    code: str
    detail: str


FromServer = Welcome | Answers | Waits | Closing
encoder = msgspec.msgpack.Encoder()
