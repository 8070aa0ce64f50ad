"""The documents that submit: one request with its command, or a batch of them, and their canonical form.

Byte strings are hexadecimal, times RFC 3339.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import msgspec

from ledger_api.wire.schema import described, refers_to
from replica.notary.codes import Code
from replica.notary.errors import BadRequest
from replica.notary.requests import (
    PUBLIC_KEY_BYTES,
    SIGNATURE_BYTES,
    STATES_LIMIT,
    DeduplicationS,
    Offset,
    Submission,
    TimeWindow,
    check_command,
    check_submission_id,
    format_state_ref,
    make_request,
    parse_ledger_id,
    parse_state_ref,
    parse_tx_id,
)
from replica.notary.terms import (
    Terms,
    decode_canonical,
    encode_canonical,
    period_s_of,
    period_us_of,
)
from replica.notary.texts import Instant, bytes_from_hex, instant_of, microseconds_of

ANONYMOUS = "anonymous"
_NO_UNPRINTABLE = r"^[^\u0000-\u001f\u007f-\u009f\u2028-\u202e\u2066-\u2069]+$"
Hex16 = Annotated[str, described("^[0-9a-fA-F]{32}$")]
Hex32 = Annotated[str, described("^[0-9a-fA-F]{64}$")]
Hex64 = Annotated[str, described("^[0-9a-fA-F]{128}$")]
StateText = Annotated[str, described("^[0-9a-fA-F]{64}:[0-9]{1,10}$")]
Name = Annotated[str, described(_NO_UNPRINTABLE)]  # its length is bounded in bytes, which a schema cannot express


class WindowDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A time window `[from, until)`; at least one end is there."""

    from_: Instant | None = msgspec.field(default=None, name="from")
    until: Instant | None = None


class RequestDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A signed notarisation request. States are `<64 hexadecimal digits>:<index>`, in any order.

    The signature covers all of it but the keys, and user id, command id, act_as and deduplication period.
    """

    ledger_id: Hex16
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


def submission_from_document(document: SubmissionDocument, new_id: Callable[[], str]) -> Submission:
    """The submission in canonical form; the signature is not looked at. Raises BadRequest."""
    parts = document.request
    if len(parts.inputs) + len(parts.references) >= STATES_LIMIT:  # before any work is put into them
        found = len(parts.inputs) + len(parts.references)
        raise BadRequest(f"{found} states, the limit is {STATES_LIMIT - 1}", Code.TOO_MANY_STATES)
    request = make_request(
        parse_tx_id(parts.tx_id),
        [parse_state_ref(text) for text in parts.inputs],
        [parse_state_ref(text) for text in parts.references],
        None if parts.time_window is None else window_from_document(parts.time_window),
        parts.party,
        ledger_id=parse_ledger_id(parts.ledger_id),
    )
    command_id = request.tx_id.hex() if document.command_id is None else document.command_id
    act_as = (parts.party,) if document.act_as is None else tuple(sorted(document.act_as))
    submission_id = new_id() if document.submission_id is None else document.submission_id
    check_command(document.user_id, command_id, act_as)
    check_submission_id(submission_id)
    terms = terms_from_document(document.user_id, command_id, act_as, document.deduplication)
    return Submission(
        encode_canonical(request, terms),
        bytes_from_hex("public_key", parts.public_key, PUBLIC_KEY_BYTES),
        bytes_from_hex("signature", parts.signature, SIGNATURE_BYTES),
        document.user_id,
        command_id,
        act_as,
        submission_id,
    )


def terms_from_document(
    user_id: str, command_id: str, act_as: tuple[str, ...], period: DeduplicationDocument | None
) -> Terms:
    """The terms of a submission with this period. Raises BadRequest where it is a duration and an offset."""
    if period is None:
        return Terms(user_id, command_id, act_as)
    if period.duration_s is not None and period.after_offset is not None:
        raise BadRequest("a deduplication period is a duration or an offset, not both")
    duration_us = None if period.duration_s is None else period_us_of(period.duration_s)
    return Terms(user_id, command_id, act_as, duration_us, period.after_offset)


def period_signed(terms: Terms) -> DeduplicationDocument | None:
    """The period that was signed for; None if none was asked for."""
    if terms.deduplication_us is None and terms.ledger_offset is None:
        return None
    duration_s = None if terms.deduplication_us is None else period_s_of(terms.deduplication_us)
    return DeduplicationDocument(duration_s, terms.ledger_offset)


def submission_to_document(submission: Submission) -> SubmissionDocument:
    """The JSON form of a submission, with every id spelt out, and the period that was signed for, if any.

    Raises BadRequest for a window beyond the year 9999.
    """
    request, _, terms, _ = decode_canonical(submission.request)
    return SubmissionDocument(
        request=RequestDocument(
            ledger_id=request.ledger_id.hex(),
            tx_id=request.tx_id.hex(),
            inputs=[format_state_ref(ref) for ref in request.inputs],
            references=[format_state_ref(ref) for ref in request.references],
            time_window=None if request.window is None else window_to_document(request.window),
            party=request.party,
            public_key=submission.public_key.hex(),
            signature=submission.signature.hex(),
        ),
        command_id=submission.command_id,
        user_id=submission.user_id,
        act_as=list(submission.act_as),
        submission_id=submission.submission_id,
        deduplication=period_signed(terms),
    )


def window_from_document(document: WindowDocument) -> TimeWindow:
    """The window in its JSON form."""
    return TimeWindow(
        None if document.from_ is None else microseconds_of(document.from_),
        None if document.until is None else microseconds_of(document.until),
    )


def window_to_document(window: TimeWindow) -> WindowDocument:
    """The JSON form of a window. Raises BadRequest for an end beyond the year 9999."""
    return WindowDocument(
        None if window.from_us is None else instant_of(window.from_us),
        None if window.until_us is None else instant_of(window.until_us),
    )
