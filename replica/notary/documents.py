"""The JSON documents of the ledger API, and their way to and from what the notary works on. docs/api.md describes them.

Byte strings are hexadecimal, times RFC 3339. Server and client share these types, so that they cannot drift apart.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Annotated

import msgspec

from replica.notary.answers import Accepted, Answer, DeduplicationBound, Earlier, Notarised, NotNow, Refused
from replica.notary.canonical import decode_request, encode_request
from replica.notary.errors import BadRequest, Code, Retry
from replica.notary.receipts import ReceiptDocument, receipt_from_document, receipt_to_document
from replica.notary.requests import (
    DIGEST_BYTES,
    PUBLIC_KEY_BYTES,
    SIGNATURE_BYTES,
    STATES_LIMIT,
    DeduplicationS,
    Offset,
    Submission,
    TimeWindow,
    check_command,
    format_state_ref,
    make_request,
    parse_state_ref,
    parse_tx_id,
)
from replica.notary.rules import Conflict, Usage

NOTARISED = "NOTARISED"
ACCEPTED = "ACCEPTED"
ANONYMOUS = "anonymous"
PROBLEM_TYPE = "urn:notary:problem:"
DETAIL_MAX_CHARACTERS = 1_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
JSON_TIME_MAX_US = 253_402_300_799_999_999  # the end of the year 9999

Instant = Annotated[datetime, msgspec.Meta(tz=True)]


def described(pattern: str) -> msgspec.Meta:
    """Tells the specification what a text looks like; our own code checks it, with an error that says more."""
    return msgspec.Meta(extra_json_schema={"pattern": pattern})


def refers_to(name: str) -> msgspec.Meta:
    """Tells the specification which document stands where bytes are kept as they came."""
    return msgspec.Meta(extra_json_schema={"$ref": f"#/components/schemas/{name}"})


_NO_UNPRINTABLE = r"^[^\u0000-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069]+$"
Hex32 = Annotated[str, described("^[0-9a-fA-F]{64}$")]
Hex64 = Annotated[str, described("^[0-9a-fA-F]{128}$")]
StateText = Annotated[str, described("^[0-9a-fA-F]{64}:[0-9]{1,10}$")]
Name = Annotated[str, described(_NO_UNPRINTABLE)]  # its length is bounded in bytes, which no schema can say


class WindowDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A time window `[from, until)`; at least one end is there."""

    from_: Instant | None = msgspec.field(default=None, name="from")
    until: Instant | None = None


class RequestDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A signed notarisation request. States are `<64 hexadecimal digits>:<index>`, in any order."""

    tx_id: Hex32
    inputs: list[StateText]
    references: list[StateText] = []
    time_window: WindowDocument | None = None
    party: Name
    public_key: Hex32
    signature: Hex64


class DeduplicationDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How far back an acceptance of the same command counts; without, as long as the notary keeps them.

    Either within `duration_s` of now, or at ledger offsets above `after_offset`. A period that reaches further than
    the notary remembers is refused, never shortened.
    """

    duration_s: DeduplicationS | None = None
    after_offset: Offset | None = None


class SubmissionDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A request and the command it is submitted under. An id that is left out gets its default."""

    request: RequestDocument
    command_id: Name | None = None  # default: the transaction id
    user_id: Name = ANONYMOUS
    act_as: list[Name] | None = None  # default: the requesting party
    submission_id: Name | None = None  # default: a random one
    deduplication: DeduplicationDocument | None = None


class BatchDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Submissions in the order in which they are to be logged. Each is judged by itself, bad ones too."""

    submissions: list[Annotated[msgspec.Raw, refers_to("SubmissionDocument")]]


class NotarisedDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A success.

    `ledger_offset` is the offset of this submission's completion; of a duplicate, that of the one that was accepted. It
    may be told before the completion can be read. Null: not known, as for a look-up.
    """

    status: int = 200
    code: str = NOTARISED
    tx_id: str
    content_digest: str
    log_offset: int
    record_offset: int | None
    duplicate: bool
    receipt: ReceiptDocument
    ledger_offset: Offset | None = None


class AcceptedDocument(msgspec.Struct, frozen=True, kw_only=True):
    """An asynchronous submission that was recorded; its outcome is a completion, within `estimate_s` most likely."""

    status: int = 202
    code: str = ACCEPTED
    submission_id: str
    estimate_s: float


class WaitDocument(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="wait"):
    """An interim estimate: the answer may take `estimate_s` more, and comes all the same, in a later line."""

    estimate_s: float


class ConflictDocument(msgspec.Struct, frozen=True):
    """A state that was consumed already."""

    state: str
    consumed_by_hash: str
    usage: Usage


class EarlierDocument(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The submission that a command id belongs to, as far as it is known; no offset while it is under way."""

    submission_id: str | None = None
    ledger_offset: Offset | None = None


class ProblemDocument(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A problem of RFC 9457. `code` and `retry` are for programs; `detail` and `remedy` are for people."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    remedy: str
    retry: Retry
    request_id: str = ""
    retry_after_s: float | None = None
    tx_id: str = ""
    record_offset: int | None = None
    conflicts: list[ConflictDocument] = []
    judged_at: str = ""
    ledger_end: int | None = None
    pruned_to: int | None = None
    deduplication_max_s: float | None = None
    time_window: WindowDocument | None = None
    earlier: EarlierDocument | None = None
    ledger_offset: Offset | None = None


AnswerDocument = NotarisedDocument | AcceptedDocument | ProblemDocument


class BatchAnswerDocument(msgspec.Struct, frozen=True):
    """One result for each submission, in order."""

    results: list[
        Annotated[
            msgspec.Raw,
            msgspec.Meta(
                extra_json_schema={
                    "anyOf": [
                        {"$ref": "#/components/schemas/NotarisedDocument"},
                        {"$ref": "#/components/schemas/AcceptedDocument"},
                        {"$ref": "#/components/schemas/ProblemDocument"},
                    ]
                }
            ),
        ]
    ]


class NotaryKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One public key of the notary's, and when it signed: for people, as receipts have no date."""

    public_key: str
    from_: Instant | None = msgspec.field(default=None, name="from")
    until: Instant | None = None

    @property
    def raw(self) -> bytes:
        """The 32 bytes of the key. Raises BadRequest."""
        return bytes_from_hex("public_key", self.public_key, PUBLIC_KEY_BYTES)


class NotaryDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What a client must know of the notary; `active` and `epoch` are this replica's, at this moment.

    `notary_key` signs now; receipts may name any of `keys`, which has those that signed before a rotation as well.
    """

    notary_key: str
    keys: list[NotaryKey] = []
    signature_scheme: str = "ed25519"
    version: str
    replica: str
    active: bool = False
    epoch: int = 0
    states_max: int = STATES_LIMIT - 1
    batch_max: int
    body_max_bytes: int


def submission_from_document(document: SubmissionDocument, new_id: Callable[[], str]) -> Submission:
    """The submission in canonical form; registry and signature are not looked at. Raises BadRequest."""
    parts = document.request
    if len(parts.inputs) + len(parts.references) >= STATES_LIMIT:  # before any work is put into them
        found = len(parts.inputs) + len(parts.references)
        raise BadRequest(f"{found} states, the limit is {STATES_LIMIT - 1}", Code.TOO_MANY_STATES)
    request = make_request(
        parse_tx_id(parts.tx_id),
        [parse_state_ref(text) for text in parts.inputs],
        [parse_state_ref(text) for text in parts.references],
        None if parts.time_window is None else _window_from_document(parts.time_window),
        parts.party,
    )
    submission = Submission(
        encode_request(request),
        bytes_from_hex("public_key", parts.public_key, PUBLIC_KEY_BYTES),
        bytes_from_hex("signature", parts.signature, SIGNATURE_BYTES),
        document.user_id,
        request.tx_id.hex() if document.command_id is None else document.command_id,
        (parts.party,) if document.act_as is None else tuple(sorted(document.act_as)),
        new_id() if document.submission_id is None else document.submission_id,
    )
    check_command(submission.user_id, submission.command_id, submission.act_as, submission.submission_id)
    return submission


def submission_to_document(submission: Submission) -> SubmissionDocument:
    """The JSON form of a submission, with every id spelt out. Raises BadRequest for a window beyond the year 9999."""
    request, _ = decode_request(submission.request)
    return SubmissionDocument(
        request=RequestDocument(
            tx_id=request.tx_id.hex(),
            inputs=[format_state_ref(ref) for ref in request.inputs],
            references=[format_state_ref(ref) for ref in request.references],
            time_window=None if request.window is None else _window_to_document(request.window),
            party=request.party,
            public_key=submission.public_key.hex(),
            signature=submission.signature.hex(),
        ),
        command_id=submission.command_id,
        user_id=submission.user_id,
        act_as=list(submission.act_as),
        submission_id=submission.submission_id,
    )


def answer_to_document(answer: Answer, request_id: str = "") -> AnswerDocument:
    """The JSON form of an answer; its `status` is the HTTP status as well."""
    match answer:
        case Notarised():
            return NotarisedDocument(
                tx_id=answer.tx_id.hex(),
                content_digest=answer.content_digest.hex(),
                log_offset=answer.log_offset,
                record_offset=answer.record_offset,
                duplicate=answer.duplicate,
                receipt=receipt_to_document(answer.receipt),
                ledger_offset=answer.ledger_offset,
            )
        case NotNow():
            code = Code[answer.code]
            return problem_document(code, answer.detail, request_id, retry_after_s=answer.retry_after_s)
        case Refused():
            return _refusal_to_document(answer, request_id)
        case Accepted():
            return AcceptedDocument(submission_id=answer.submission_id, estimate_s=answer.estimate_s)


def problem_document(
    code: Code, detail: str, request_id: str = "", *, retry_after_s: float | None = None
) -> ProblemDocument:
    """The problem document of a catalogue entry; `detail` may repeat what somebody sent."""
    return ProblemDocument(
        type=PROBLEM_TYPE + code.name,
        title=code.title,
        status=code.status,
        detail=printable(detail),
        code=code.name,
        remedy=code.remedy,
        retry=code.retry,
        request_id=request_id,
        retry_after_s=retry_after_s,
    )


def printable(detail: str) -> str:
    """A detail as it may be answered and logged: of bounded length, and nothing that is no Unicode text."""
    if len(detail) > DETAIL_MAX_CHARACTERS:
        detail = detail[:DETAIL_MAX_CHARACTERS] + " …"
    return detail if detail.isascii() else detail.encode(errors="backslashreplace").decode()


def answer_from_document(document: AnswerDocument) -> Answer | ProblemDocument:
    """The answer in a JSON form; a problem that is no answer of the notary, as it never got there, stays what it is.

    Raises BadRequest when the document cannot be read.
    """
    if isinstance(document, NotarisedDocument):
        return Notarised(
            parse_tx_id(document.tx_id),
            bytes_from_hex("content_digest", document.content_digest, DIGEST_BYTES),
            document.log_offset,
            document.record_offset,
            document.duplicate,
            receipt_from_document(document.receipt),
            document.ledger_offset,
        )
    if isinstance(document, AcceptedDocument):
        return Accepted(document.submission_id, document.estimate_s)
    if document.retry is Retry.SAME:
        return NotNow(document.code, document.detail, document.retry_after_s or 0.0)
    if not document.tx_id:
        return document
    return Refused(
        document.code,
        parse_tx_id(document.tx_id),
        document.record_offset,
        tuple([_conflict_from_document(conflict) for conflict in document.conflicts]),
        parse_time(document.judged_at) if document.judged_at else None,
        _bound_from_document(document),
        None if document.time_window is None else _window_from_document(document.time_window),
        None if document.earlier is None else Earlier(document.earlier.submission_id, document.earlier.ledger_offset),
        document.ledger_offset,
    )


def bytes_from_hex(name: str, text: str, size: int) -> bytes:
    """`size` bytes from exactly their hexadecimal digits. Raises BadRequest naming the field."""
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raw = b""
    if len(raw) != size or len(text) != 2 * size:  # `fromhex` skips spaces
        raise BadRequest(f"{name} is {2 * size} hexadecimal digits")
    return raw


def format_time(time_us: int) -> str:
    """RFC 3339 of a time in microseconds UTC. Raises BadRequest beyond the year 9999."""
    return _instant(time_us).isoformat(timespec="microseconds").replace("+00:00", "Z")


def parse_time(text: str) -> int:
    """Microseconds UTC of an RFC 3339 time. Raises BadRequest."""
    try:
        return _microseconds(msgspec.convert(text, Instant))
    except msgspec.ValidationError as error:
        raise BadRequest(f"{text[:40]!r}: {error}") from None


def _instant(time_us: int) -> datetime:
    try:
        return _EPOCH + time_us * _MICROSECOND
    except OverflowError:
        raise BadRequest("a time in JSON ends with the year 9999") from None


def _microseconds(instant: datetime) -> int:
    return (instant - _EPOCH) // _MICROSECOND


def _window_from_document(document: WindowDocument) -> TimeWindow:
    return TimeWindow(
        None if document.from_ is None else _microseconds(document.from_),
        None if document.until is None else _microseconds(document.until),
    )


def _window_to_document(window: TimeWindow) -> WindowDocument:
    return WindowDocument(
        None if window.from_us is None else _instant(window.from_us),
        None if window.until_us is None else _instant(window.until_us),
    )


def _window_shown(window: TimeWindow | None) -> WindowDocument | None:
    """The window that an answer repeats. An answer must be told: an end that JSON cannot say is left out.

    Whoever writes an offset into a time gets past the year 9999 without leaving RFC 3339.
    """
    if window is None:
        return None
    ends = [None if end is None or end > JSON_TIME_MAX_US else end for end in (window.from_us, window.until_us)]
    return None if ends == [None, None] else _window_to_document(TimeWindow(*ends))


def _refusal_to_document(refused: Refused, request_id: str) -> ProblemDocument:
    code = Code[refused.code]
    detail = code.title
    if refused.conflicts:
        first, others_count = format_state_ref(refused.conflicts[0].state), len(refused.conflicts) - 1
        detail = (
            f"{first} and {others_count} more were consumed before" if others_count else f"{first} was consumed before"
        )
    judged_at = "" if refused.judged_us is None else format_time(refused.judged_us)
    if code is Code.TIME_WINDOW_CLOSED and judged_at:
        detail = f"judged at {judged_at}, which is outside the window"
    bound, earlier = refused.bound, refused.earlier
    if bound is not None:
        detail = f"the longest period is {bound.longest_s:g} s, or the ledger offsets above {bound.earliest_offset}"
    return msgspec.structs.replace(
        problem_document(code, detail, request_id),
        tx_id=refused.tx_id.hex(),
        record_offset=refused.record_offset,
        conflicts=[
            ConflictDocument(format_state_ref(conflict.state), conflict.consumed_by_hash.hex(), conflict.usage)
            for conflict in refused.conflicts
        ],
        judged_at=judged_at,
        deduplication_max_s=None if bound is None else bound.longest_s,
        pruned_to=None if bound is None else bound.earliest_offset,
        time_window=_window_shown(refused.window),
        earlier=None
        if earlier is None
        else EarlierDocument(submission_id=earlier.submission_id, ledger_offset=earlier.ledger_offset),
        ledger_offset=refused.ledger_offset,
    )


def _bound_from_document(document: ProblemDocument) -> DeduplicationBound | None:
    longest_s, earliest_offset = document.deduplication_max_s, document.pruned_to
    return None if longest_s is None or earliest_offset is None else DeduplicationBound(longest_s, earliest_offset)


def _conflict_from_document(document: ConflictDocument) -> Conflict:
    consumed_by_hash = bytes_from_hex("consumed_by_hash", document.consumed_by_hash, DIGEST_BYTES)
    return Conflict(parse_state_ref(document.state), consumed_by_hash, document.usage)
