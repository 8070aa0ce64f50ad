"""What a request record proves by itself, without this program: docs/formats.md describes how to check it. Pure."""

from __future__ import annotations

from typing import Any

from replica.notary.records import RequestRecord, decode_record, format_named, record_digest
from replica.notary.requests import format_state_ref
from replica.notary.signatures import signature_holds
from replica.notary.terms import signed_in


def evidence(offset: int, value: bytes) -> dict[str, Any]:
    """Who asked for what, in a counting request, and its proof; byte strings as hex."""
    record = decode_record(value, format_named(value))
    if not isinstance(record, RequestRecord):
        raise TypeError(f"the record at offset {offset} is no request")
    request, digest, terms, _ = signed_in(record)
    return {
        "offset": offset,
        "tx_id": request.tx_id.hex(),
        "content_digest": digest.hex(),
        "inputs": [format_state_ref(ref) for ref in request.inputs],
        "references": [format_state_ref(ref) for ref in request.references],
        "party": request.party,
        "user_id": terms.user_id,
        "command_id": terms.command_id,
        "act_as": list(terms.act_as),
        "submission_id": record.submission_id,
        "deduplication_us": record.deduplication_us,
        "deduplication_after": terms.ledger_offset,
        "submitted_us": record.stamp_us,
        "public_key": record.public_key.hex(),
        "signature": record.signature.hex(),
        "signature_holds": signature_holds(record.public_key, record.request, record.signature),
        "signed_bytes": record.request.hex(),
        "record": value.hex(),
        "record_sha256": record_digest(value).hex(),
    }
