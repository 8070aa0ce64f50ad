"""The ledger API's client: signed submissions, retries with the same ids, receipts that verify offline."""

from ledger_api.client.access import Access
from ledger_api.client.answers import Result, code_of
from ledger_api.client.bookmark import Bookmark
from ledger_api.client.client import NotaryClient
from ledger_api.client.connection import OnWait
from ledger_api.client.errors import (
    AnswerUnreadable,
    ClientError,
    NotarisationRefused,
    OutcomeUnknown,
    ReceiptInvalid,
    RequestRejected,
    StreamEnded,
    TokenUnavailable,
    success_of,
)
from ledger_api.client.retry import RetryPolicy
from ledger_api.client.signing import Deduplication, Party, certifies, encode_batch, encode_submission
from ledger_api.client.stream import StreamResult, SubmissionStream
from ledger_api.client.sync import SyncNotaryClient

__all__ = [
    "Access",
    "AnswerUnreadable",
    "Bookmark",
    "ClientError",
    "Deduplication",
    "NotarisationRefused",
    "NotaryClient",
    "OnWait",
    "OutcomeUnknown",
    "Party",
    "ReceiptInvalid",
    "RequestRejected",
    "Result",
    "RetryPolicy",
    "StreamEnded",
    "StreamResult",
    "SubmissionStream",
    "SyncNotaryClient",
    "TokenUnavailable",
    "certifies",
    "code_of",
    "encode_batch",
    "encode_submission",
    "success_of",
]
