"""Validation of submissions: only well-formed and signed ones go over the link to the core.

Which keys may sign is in the log, so the core decides it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from ledger_api.server.authorisation import EVERYBODY, Caller, check_may_submit
from ledger_api.wire.repeated_keys import check_batch, check_submission
from ledger_api.wire.submissions import (
    BatchDocument,
    DeduplicationDocument,
    SubmissionDocument,
    submission_from_document,
)
from replica.link.interface import DEFAULT_OPTIONS, SubmitOptions
from replica.native.signatures import signatures_hold
from replica.notary.canonical import ledger_id_in
from replica.notary.codes import Code
from replica.notary.errors import BadRequest
from replica.notary.requests import Submission, check_command, check_submission_id
from replica.notary.terms import Terms, decode_canonical, period_s_of, period_us_of
from replica.telemetry.counts import ApiCounts

_SUBMISSION_ID_BYTES = 16
_submission_decoder = msgspec.json.Decoder(SubmissionDocument)
_batch_decoder = msgspec.json.Decoder(BatchDocument)
Document = TypeVar("Document")


class Validator:
    """Validates submissions, so that the core need not look at them again.

    It takes two steps. First each submission is read and checked, but for its signature. Then the signatures of those
    that came together are checked together, because that costs much less.
    """

    def __init__(self, counts: ApiCounts, batch_max: int, ledger_id: Callable[[], bytes]) -> None:
        """`ledger_id`: of this notary, which a replica that serves knows."""
        self._counts = counts
        self._ledger_id = ledger_id
        self._batch_max = batch_max

    def read(self, raw: bytes | msgspec.Raw, caller: Caller = EVERYBODY) -> tuple[Submission, SubmitOptions]:
        """The submission in a JSON document, and the options it asks for. Its signature is not checked yet.

        Raises BadRequest with the code of the first thing that is wrong.
        """
        document = _decode(_submission_decoder, raw)
        check_submission(bytes(raw), document)
        check_may_submit(caller, document.user_id, document.request.party, document.act_as or ())
        submission = submission_from_document(document, _random_id)
        self._check_ledger(ledger_id_in(submission.request))
        return submission, DEFAULT_OPTIONS if document.deduplication is None else _options(document.deduplication)

    def read_signed(
        self, submission: Submission, asked: SubmitOptions = DEFAULT_OPTIONS, caller: Caller = EVERYBODY
    ) -> tuple[Submission, SubmitOptions]:
        """As `read`, of a submission that came in canonical bytes. A deduplication period that was signed for goes
        before the one `asked` for: those two must agree."""
        request, _, terms, _ = decode_canonical(submission.request)
        self._check_ledger(request.ledger_id)
        check_command(submission.user_id, submission.command_id, submission.act_as)
        check_submission_id(submission.submission_id)
        if len(submission.act_as) > 1 and list(submission.act_as) != sorted(submission.act_as):
            raise BadRequest("act_as is not in ascending order")
        check_may_submit(caller, submission.user_id, request.party, submission.act_as)
        return submission, _as_signed(submission, terms, asked)

    def signature_errors(self, submissions: Sequence[Submission]) -> list[BadRequest | None]:
        """For each submission that was read: the error of a bad signature; None for a good one."""
        checks = [(submission.public_key, submission.request, submission.signature) for submission in submissions]
        held = signatures_hold(checks)
        good_count = sum(held)
        self._counts.signatures_good += good_count
        self._counts.signatures_bad += len(held) - good_count
        return [None if holds else _bad_signature() for holds in held]

    def _check_ledger(self, signed_for: bytes) -> None:
        ledger_id = self._ledger_id()
        if signed_for != ledger_id:
            found = f"it was signed for ledger {signed_for.hex()}, and this is {ledger_id.hex()}"
            raise BadRequest(found, Code.WRONG_LEDGER)

    def split(self, raw: bytes) -> list[msgspec.Raw]:
        """The documents of a batch, not validated yet. Raises BadRequest when it is no batch, empty or too large."""
        documents = _decode(_batch_decoder, raw).submissions
        if not documents:
            raise BadRequest("the list of submissions is empty", Code.EMPTY_BATCH)
        if len(documents) > self._batch_max:
            raise BadRequest(f"{len(documents)} submissions, the limit is {self._batch_max}", Code.BATCH_TOO_LARGE)
        check_batch(raw, documents)
        return documents


def _bad_signature() -> BadRequest:
    return BadRequest("the signature does not fit the canonical request and key", Code.SIGNATURE_INVALID)


def _decode(decoder: msgspec.json.Decoder[Document], raw: bytes | msgspec.Raw) -> Document:
    try:
        return decoder.decode(raw)
    except UnicodeDecodeError:
        raise BadRequest("the document is not in UTF-8", Code.MALFORMED_JSON) from None
    except msgspec.DecodeError as error:
        raise BadRequest(_clearer(str(error)), Code.MALFORMED_JSON) from None
    except RecursionError:
        raise BadRequest("the document is nested too deep", Code.MALFORMED_JSON) from None


def _clearer(said: str) -> str:
    """The decoder's message, replaced where it would mislead."""
    if "surrogate" in said:
        return "a text has half of a surrogate pair"
    if said == "Input data was truncated":  # the decoder looks for the other half of a pair beyond the text
        return "the document ends too early, or a text ends with half of a surrogate pair"
    return said


def _as_signed(submission: Submission, terms: Terms, asked: SubmitOptions) -> SubmitOptions:
    """The options of a submission whose signature covers its terms. Raises BadRequest where they are of another command
    or period: nobody signed for this submission. Its record would be of the signed command, or void for its period."""
    if (submission.user_id, submission.command_id, submission.act_as) != (
        terms.user_id,
        terms.command_id,
        terms.act_as,
    ):
        raise BadRequest("it was signed for another user, command or act_as", Code.SIGNATURE_INVALID)
    wanted_s, after = asked.deduplication_s, asked.deduplication_after
    wanted = (None if wanted_s is None else period_us_of(wanted_s), after)
    if wanted not in ((None, None), (terms.deduplication_us, terms.ledger_offset)):
        raise BadRequest("it was signed for another deduplication period", Code.SIGNATURE_INVALID)
    signed_s = None if terms.deduplication_us is None else period_s_of(terms.deduplication_us)
    return SubmitOptions(asked.asynchronous, signed_s, terms.ledger_offset)


def _options(document: DeduplicationDocument) -> SubmitOptions:
    return SubmitOptions(deduplication_s=document.duration_s, deduplication_after=document.after_offset)


def _random_id() -> str:
    return os.urandom(_SUBMISSION_ID_BYTES).hex()
