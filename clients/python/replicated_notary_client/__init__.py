"""Client of the replicated notary's ledger API: signed submissions, retries with the same ids, receipts, completions.

Everything public is in this one namespace. Byte strings such as transaction ids, states and keys may be given as text.
"""

from __future__ import annotations

from ledger_api.client import (
    Access,
    AnswerUnreadable,
    Bookmark,
    ClientError,
    Deduplication,
    NotarisationRefused,
    NotaryClient,
    OnWait,
    OutcomeUnknown,
    Party,
    ReceiptInvalid,
    RequestRejected,
    RetryPolicy,
    StreamEnded,
    StreamResult,
    SubmissionStream,
    SyncNotaryClient,
    TokenUnavailable,
    certifies,
    code_of,
    encode_batch,
    encode_submission,
    success_of,
)
from ledger_api.client import Result as Answer
from ledger_api.wire.answers import CommitDocument as Commit
from ledger_api.wire.answers import LogTransactionDocument as LogTransaction
from ledger_api.wire.answers import NotaryDocument as Notary
from ledger_api.wire.feed import CompletionDocument as Completion
from ledger_api.wire.feed import LedgerEndDocument as LedgerEnd
from ledger_api.wire.feed import StateStatusDocument as StateStatus
from ledger_api.wire.feed import TransactionStatusDocument as TransactionStatus
from ledger_api.wire.feed import UpdateDocument as Update
from ledger_api.wire.problems import ProblemDocument as Problem
from replica.notary.answers import Accepted, AcceptedEarly, Notarised, NotNow, Refused
from replica.notary.codes import Code, Retry
from replica.notary.errors import BadRequest, ConfigError, NotActive, NotaryError
from replica.notary.receipts import Receipt, ReceiptDocument, receipt_from_document, receipt_to_document, verify_receipt
from replica.notary.requests import Submission, TimeWindow, format_state_ref, parse_state_ref
from replica.notary.rules import Conflict, Usage
from replica.notary.texts import format_time, parse_time

__all__ = [
    "Accepted",
    "AcceptedEarly",
    "Access",
    "Answer",
    "AnswerUnreadable",
    "BadRequest",
    "Bookmark",
    "ClientError",
    "Code",
    "Commit",
    "Completion",
    "ConfigError",
    "Conflict",
    "Deduplication",
    "LedgerEnd",
    "LogTransaction",
    "NotActive",
    "NotNow",
    "NotarisationRefused",
    "Notarised",
    "Notary",
    "NotaryClient",
    "NotaryError",
    "OnWait",
    "OutcomeUnknown",
    "Party",
    "Problem",
    "Receipt",
    "ReceiptDocument",
    "ReceiptInvalid",
    "Refused",
    "RequestRejected",
    "Retry",
    "RetryPolicy",
    "StateStatus",
    "StreamEnded",
    "StreamResult",
    "Submission",
    "SubmissionStream",
    "SyncNotaryClient",
    "TimeWindow",
    "TokenUnavailable",
    "TransactionStatus",
    "Update",
    "Usage",
    "certifies",
    "code_of",
    "encode_batch",
    "encode_submission",
    "format_state_ref",
    "format_time",
    "parse_state_ref",
    "parse_time",
    "receipt_from_document",
    "receipt_to_document",
    "success_of",
    "verify_receipt",
]
