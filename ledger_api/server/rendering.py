"""Renders results as HTTP answers and documents, each counted by its code. Makes every problem document."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import structlog

from ledger_api.server.feed import FeedRefused
from ledger_api.server.logs import LogLimits
from ledger_api.server.replies import Reply, problem_reply
from ledger_api.wire.answers import AnswerDocument, answer_to_document
from ledger_api.wire.problems import ProblemDocument, problem_document
from replica.link.interface import Standing
from replica.notary.answers import Answer, NotNow
from replica.notary.codes import Code, Retry
from replica.notary.errors import BadRequest
from replica.telemetry.counts import ApiCounts

_log = structlog.get_logger(__name__)
RETRY_ERROR_S = 1.0
_encoder = msgspec.json.Encoder()


class Renderer:
    """Renders results. Callers' mistakes and our own failures are logged within the limits."""

    def __init__(self, counts: ApiCounts, limits: LogLimits, standing: Callable[[], Standing]) -> None:
        """`standing`: the core's newest report."""
        self._counts = counts
        self._limits = limits
        self._standing = standing

    def reply(self, result: Answer | ProblemDocument, request_id: str, more: bytes = b"") -> Reply:
        """The HTTP answer of a result. `more`: further header lines of a problem, each with its end."""
        document = self.document(result, request_id)
        if isinstance(document, ProblemDocument):
            return problem_reply(document, request_id, more)
        return Reply(document.status, _encoder.encode(document), request_id)

    def document(self, result: Answer | ProblemDocument, request_id: str) -> AnswerDocument:
        """The document of a result."""
        document = result if isinstance(result, ProblemDocument) else self._document_of(result, request_id)
        answers = self._counts.answers
        answers[document.code] = answers.get(document.code, 0) + 1
        return document

    def refused(self, error: BadRequest, request_id: str) -> ProblemDocument:
        """The problem of a request that is wrong, which is logged. It is counted once it is rendered."""
        problem = problem_document(error.code, error.detail, request_id)
        write = self._limits.refused.write
        write(_log.info, "request_refused", request_id=request_id, code=problem.code, detail=problem.detail)
        return problem

    def failed(self, error: Exception, request_id: str, route: str) -> NotNow:
        """The answer to a call on which this front end fails, which is logged."""
        self._limits.failed.write(_log.error, "request_failed", request_id=request_id, route=route, exc_info=error)
        detail = "an error of the replica's own; whether anything was decided is not known"
        return NotNow(Code.INTERNAL.name, detail, RETRY_ERROR_S)

    def _document_of(self, answer: Answer, request_id: str) -> AnswerDocument:
        """An answer without a JSON form affects its own submission only. It is no refusal: that may be decided."""
        try:
            return answer_to_document(answer, request_id)
        except Exception as error:
            self._limits.failed.write(_log.error, "answer_untold", request_id=request_id, exc_info=error)
            detail = "the core has answered, but its answer has no JSON form"
            unknown = NotNow(Code.OUTCOME_UNKNOWN.name, detail, self._standing().retry_after_s)
            return answer_to_document(unknown, request_id)


def feed_problem(refused: FeedRefused, request_id: str) -> ProblemDocument:
    """The problem of a reader, with the bounds that the reader needs in order to go on."""
    standing = refused.standing
    retry_after_s = standing.retry_after_s if refused.code.retry is Retry.SAME else None
    document = problem_document(refused.code, refused.detail, request_id, retry_after_s=retry_after_s)
    if refused.code in (Code.OFFSET_PRUNED, Code.OFFSET_AFTER_END):
        return msgspec.structs.replace(document, ledger_end=standing.ledger_end, pruned_to=standing.pruned_to)
    return document
