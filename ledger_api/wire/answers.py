"""The documents that answer a submission or a look-up, and their way to and from the notary's answers.

Byte strings are hexadecimal, times RFC 3339.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from ledger_api.wire.problems import ConflictDocument, ProblemDocument, problem_document
from ledger_api.wire.submissions import WindowDocument, window_from_document, window_to_document
from replica.notary.answers import (
    Accepted,
    AcceptedEarly,
    Answer,
    DeduplicationBound,
    Notarised,
    NotNow,
    Refused,
)
from replica.notary.codes import Code, Retry
from replica.notary.keys import NotaryKey
from replica.notary.receipts import ReceiptDocument, receipt_from_document, receipt_to_document
from replica.notary.requests import (
    DIGEST_BYTES,
    STATES_LIMIT,
    Offset,
    TimeWindow,
    format_state_ref,
    parse_state_ref,
    parse_tx_id,
)
from replica.notary.rules import Conflict
from replica.notary.signatures import SCHEMES
from replica.notary.texts import JSON_TIME_MAX_US, bytes_from_hex, format_time, parse_time

NOTARISED = "NOTARISED"
ACCEPTED = "ACCEPTED"
ACCEPTED_EARLY = "ACCEPTED_EARLY"
TxStatusName = Literal["Unknown", "Pending", "Committed", "Invalid"]


class NotarisedDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A success.

    `ledger_offset` is the offset of this submission's completion; of a duplicate, that of the one that was accepted. It
    may be known before the completion can be read. Null: not known, as for a look-up.
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
    """An asynchronous submission that was recorded; its outcome is a completion, within `estimate_s` most likely.

    `log_offset` is where its record is in the request log; its completion has the same. Null: not in the log yet. A
    submission that several replicas logged has a completion for each: at most one of them is NOTARISED.

    With code ACCEPTED_EARLY it is not recorded yet: the log's leader has it at `transaction_id`, `view.seqno`, and may
    still lose it. `GET /v1/log/{transaction_id}` shows what became of that entry; the record may get another place.
    """

    status: int = 202
    code: str = ACCEPTED
    submission_id: str
    estimate_s: float
    log_offset: Offset | None = None
    transaction_id: str | msgspec.UnsetType = msgspec.UNSET


class LogTransactionDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an entry of the request log, as the log node beside this replica knows it.

    `status` is Unknown, Pending, Committed or Invalid; the last two are final. `committed` is the newest entry that
    this node knows to be committed. `log_offset` is a committed record's; null: not known yet, or the log's own entry.
    `ledger_offset` is where the record's completion is published; null: not yet, or the record counts for nothing.
    """

    transaction_id: str
    status: TxStatusName
    committed: str
    log_offset: Offset | None = None
    ledger_offset: Offset | None = None


class CommitDocument(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The newest entry of the request log that the node beside this replica knows to be committed.

    `view_history`: item i is the seqno at which view `view_history_since` + i began; committed views only, at most
    1,000 of them.
    """

    transaction_id: str
    view_history: list[int] | None = None
    view_history_since: int | None = None


class WaitDocument(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="wait"):
    """An interim estimate: the answer may take `estimate_s` more; it still follows, in a later line."""

    estimate_s: float


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


class NotaryDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What a client must know of the notary; `active` and `epoch` are this replica's, at this moment.

    `notary_key` signs now, by `signature_scheme`; receipts may name any of `keys`, which has those that signed before a
    rotation as well. `ledger_id`: 32 hexadecimal digits that name the ledger, in every copy of its log for ever; null
    until this replica has read the beginning of the log.
    """

    ledger_id: str | None = None
    notary_key: str
    keys: list[NotaryKey] = []
    signature_scheme: str = SCHEMES["ed25519"]
    version: str
    replica: str
    active: bool = False
    epoch: int = 0
    states_max: int = STATES_LIMIT - 1
    batch_max: int
    body_max_bytes: int


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
        case AcceptedEarly():
            return AcceptedDocument(
                code=ACCEPTED_EARLY,
                submission_id=answer.submission_id,
                estimate_s=answer.estimate_s,
                transaction_id=answer.transaction_id,
            )
        case Accepted():
            return AcceptedDocument(
                submission_id=answer.submission_id, estimate_s=answer.estimate_s, log_offset=answer.log_offset
            )


def answer_from_document(document: AnswerDocument) -> Answer | ProblemDocument:
    """The answer in a JSON form. A problem of a request that never reached the notary is returned as it is.

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
        if isinstance(document.transaction_id, str):
            return AcceptedEarly(document.submission_id, document.transaction_id, document.estimate_s)
        return Accepted(document.submission_id, document.estimate_s, document.log_offset)
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
        None if document.time_window is None else window_from_document(document.time_window),
        document.accepted_offset,
        document.ledger_offset,
    )


def _window_shown(window: TimeWindow | None) -> WindowDocument | None:
    """The window that an answer repeats. An end that JSON cannot express is left out, or there would be no answer.

    A time with a zone offset can be past the year 9999 and still be RFC 3339.
    """
    if window is None:
        return None
    ends = [None if end is None or end > JSON_TIME_MAX_US else end for end in (window.from_us, window.until_us)]
    return None if ends == [None, None] else window_to_document(TimeWindow(*ends))


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
    bound = refused.bound
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
        accepted_offset=refused.accepted_offset,
        ledger_offset=refused.ledger_offset,
    )


def _bound_from_document(document: ProblemDocument) -> DeduplicationBound | None:
    longest_s, earliest_offset = document.deduplication_max_s, document.pruned_to
    return None if longest_s is None or earliest_offset is None else DeduplicationBound(longest_s, earliest_offset)


def _conflict_from_document(document: ConflictDocument) -> Conflict:
    consumed_by_hash = bytes_from_hex("consumed_by_hash", document.consumed_by_hash, DIGEST_BYTES)
    return Conflict(parse_state_ref(document.state), consumed_by_hash, document.usage)
