"""What stands between the network and the link: only well-formed, registered and signed submissions get through."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

import msgspec

from ledger_api.server.entitlement import EVERYBODY, Caller, as_submitted_by
from ledger_api.server.registry import ALWAYS, Registry
from replica.link.counts import ApiCounts
from replica.notary.documents import BatchDocument, SubmissionDocument, submission_from_document
from replica.notary.errors import BadRequest, Code
from replica.notary.receipts import signature_holds
from replica.notary.requests import Submission

_SUBMISSION_ID_BYTES = 16
_submission_decoder = msgspec.json.Decoder(SubmissionDocument)
_batch_decoder = msgspec.json.Decoder(BatchDocument)
Document = TypeVar("Document")


class Gate:
    """Turns JSON into submissions that the core may take without looking at them again."""

    def __init__(
        self, registry: Registry, counts: ApiCounts, batch_max: int, *, now_s: Callable[[], float] = time.time
    ) -> None:
        """`now_s`: Unix time, for the periods of keys."""
        self._now_s = now_s
        self._registry = registry
        self._counts = counts
        self._batch_max = batch_max

    def admit(self, raw: bytes | msgspec.Raw, caller: Caller = EVERYBODY) -> Submission:
        """The submission in a JSON document. Raises BadRequest with the code of the first thing that is wrong."""
        document = as_submitted_by(_decode(_submission_decoder, raw), caller)
        submission = submission_from_document(document, _random_id)
        party = document.request.party
        self._check_key(party, submission.public_key)
        if not signature_holds(submission.public_key, submission.request, submission.signature):
            self._counts.signatures_bad += 1
            raise BadRequest("the signature does not fit the canonical request and key", Code.SIGNATURE_INVALID)
        self._counts.signatures_good += 1
        return submission

    def _check_key(self, party: str, public_key: bytes) -> None:
        period = self._registry.period(party, public_key)
        if period is ALWAYS:
            return
        if period is None:
            raise BadRequest(f"{party!r} with key {public_key.hex()} is not registered", Code.PARTY_UNKNOWN)
        if not period.covers(self._now_s()):
            raise BadRequest(f"key {public_key.hex()} of {party!r} is not for this time", Code.KEY_NOT_VALID)

    def split(self, raw: bytes) -> list[msgspec.Raw]:
        """The documents of a batch, not looked at yet. Raises BadRequest when it is no batch, empty or too large."""
        documents = _decode(_batch_decoder, raw).submissions
        if not documents:
            raise BadRequest("the list of submissions is empty", Code.EMPTY_BATCH)
        if len(documents) > self._batch_max:
            raise BadRequest(f"{len(documents)} submissions, the limit is {self._batch_max}", Code.BATCH_TOO_LARGE)
        return documents


def _decode(decoder: msgspec.json.Decoder[Document], raw: bytes | msgspec.Raw) -> Document:
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(str(error), Code.MALFORMED_JSON) from None
    except RecursionError:
        raise BadRequest("the document is nested too deep", Code.MALFORMED_JSON) from None


def _random_id() -> str:
    return os.urandom(_SUBMISSION_ID_BYTES).hex()
