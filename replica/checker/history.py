"""Histories: what clients asked and which answers they got, one JSON document per line.

An operation is one attempt: an `invoke` line when it is sent, and at most one line that says how it ended. That line is
`ok`, `refused` (a definite answer), or `unknown` (refused for now, timed out, or lost). A retry is another operation.

An operation is named by its process and a number that rises within the process. Times are nanoseconds of the monotonic
clock of one host, so the files of several processes on that host may be read one after another (docs/formats.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Annotated, Literal

import msgspec

from replica.notary.codes import Code
from replica.notary.errors import NotaryError
from replica.notary.receipts import ReceiptDocument
from replica.notary.requests import STATES_LIMIT, Request, Submission, format_state_ref
from replica.notary.untrusted import UNREADABLE

LINE_MAX_BYTES = 4_000_000  # a conflict over 9,999 states, each with a hash, has about 1,900,000

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=100)]
_Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Seconds = Annotated[float, msgspec.Meta(ge=0)]
_Hash = Annotated[str, msgspec.Meta(min_length=64, max_length=64)]
_StateText = Annotated[str, msgspec.Meta(min_length=66, max_length=75)]
_States = Annotated[tuple[_StateText, ...], msgspec.Meta(max_length=STATES_LIMIT)]


class HistoryError(NotaryError):
    """The file is not a history, or not a whole one; nothing was checked."""

    default_code = Code.HISTORY_INVALID


class Content(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a request says; states as `<64 hexadecimal digits>:<index>`, times in microseconds UTC."""

    party: str
    inputs: _States = ()
    references: _States = ()
    from_us: _Number | None = None
    until_us: _Number | None = None


class CommandIds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The command that a request was submitted under."""

    user_id: str
    command_id: str
    act_as: tuple[str, ...]
    submission_id: str


class Signed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a request was signed with, in hexadecimal: lets the checker say whether the signature holds.

    `canonical`: the canonical bytes that were signed."""

    public_key: Annotated[str, msgspec.Meta(min_length=64, max_length=64)]
    signature: Annotated[str, msgspec.Meta(min_length=128, max_length=128)]
    canonical: str


class Invoke(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="type", tag="invoke"
):
    """An operation is sent: a submission, or, without content, a look-up of a transaction id."""

    process: _Name
    op: _Number
    at_ns: _Number
    tx_id: _Hash
    content: Content | None = None
    command: CommandIds | None = None
    signed: Signed | None = None


class Ok(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="type", tag="ok"):
    """Notarised at `log_offset`. `record_offset` is the submission's own record. It is None for a look-up, and when the
    recorded answer was given again; the latter sets `duplicate`. `epoch` and `replica` say who answered, if known.
    `estimate_s` is the first waiting time that was sent to the client, if any.
    """

    process: _Name
    op: _Number
    at_ns: _Number
    content_digest: _Hash
    log_offset: _Number
    record_offset: _Number | None = None
    duplicate: bool = False
    receipt: ReceiptDocument | None = None
    epoch: _Number | None = None
    replica: _Name | None = None
    estimate_s: _Seconds | None = None


class ConflictText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One state that stood in the way, as the answer named it."""

    state: _StateText
    consumed_by_hash: _Hash
    usage: Literal["input", "reference"]


class Refused(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="type", tag="refused"
):
    """A definite refusal; `code` is a name of the error catalogue that is not to be retried as it is."""

    process: _Name
    op: _Number
    at_ns: _Number
    code: _Name
    record_offset: _Number | None = None
    conflicts: Annotated[tuple[ConflictText, ...], msgspec.Meta(max_length=STATES_LIMIT)] = ()
    judged_us: _Number | None = None
    epoch: _Number | None = None
    replica: _Name | None = None
    estimate_s: _Seconds | None = None


class Unknown(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag_field="type", tag="unknown"
):
    """No definite answer: any 503, a time-out, a lost connection. The request may or may not have been logged."""

    process: _Name
    op: _Number
    at_ns: _Number
    code: _Name
    estimate_s: _Seconds | None = None


Ending = Ok | Refused | Unknown
Event = Invoke | Ending

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Invoke | Ok | Refused | Unknown)


def invoke_submission(process: str, op: int, at_ns: int, request: Request, submission: Submission) -> Invoke:
    """The event for sending a submission of a request."""
    window = request.window
    content = Content(
        request.party,
        tuple([format_state_ref(ref) for ref in request.inputs]),
        tuple([format_state_ref(ref) for ref in request.references]),
        None if window is None else window.from_us,
        None if window is None else window.until_us,
    )
    command = CommandIds(submission.user_id, submission.command_id, submission.act_as, submission.submission_id)
    signed = Signed(submission.public_key.hex(), submission.signature.hex(), submission.request.hex())
    return Invoke(process, op, at_ns, request.tx_id.hex(), content, command, signed)


def encode_event(event: Event) -> bytes:
    """The line of an event, with its line end."""
    return _encoder.encode(event) + b"\n"


def decode_event(line: bytes) -> Event:
    """The event of a line. Raises msgspec.DecodeError unless it is exactly one, with no field that is not known."""
    return _decoder.decode(line)


class HistoryWriter:
    """Appends events to a binary stream, which the caller opens, flushes and closes."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream

    def write(self, event: Event) -> None:
        """Append one event."""
        self._stream.write(encode_event(event))


def read_history(stream: IO[bytes], name: str = "history") -> Iterator[Event]:
    """The events of a binary stream. Raises HistoryError naming the line that is none, or is cut off."""
    number = 0
    while line := stream.readline(LINE_MAX_BYTES + 1):
        number += 1
        if not line.endswith(b"\n"):
            problem = "is too long" if len(line) > LINE_MAX_BYTES else "is cut off"
            raise HistoryError(f"{name}, line {number} {problem}")
        try:
            yield decode_event(line)
        except UNREADABLE as error:
            raise HistoryError(f"{name}, line {number}: {error}") from None
