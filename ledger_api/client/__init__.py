"""The ledger API's client: signed submissions, retries with the same ids, receipts that verify offline."""

from ledger_api.client.client import NotaryClient, Result
from ledger_api.client.retry import RetryPolicy
from ledger_api.client.signing import Party, certifies, encode_batch, encode_submission

__all__ = ["NotaryClient", "Party", "Result", "RetryPolicy", "certifies", "encode_batch", "encode_submission"]
