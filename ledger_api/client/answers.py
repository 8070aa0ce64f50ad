"""What a call's answer means: a result of the notary, a problem, or no answer, which leaves the outcome unknown."""

from __future__ import annotations

from http import HTTPStatus

import msgspec

from ledger_api.client.errors import AnswerUnreadable, RequestRejected
from ledger_api.client.exchange import QUOTE_MAX, decode
from ledger_api.wire.answers import (
    ACCEPTED,
    AcceptedDocument,
    NotarisedDocument,
    answer_from_document,
)
from ledger_api.wire.problems import ProblemDocument
from replica.notary.answers import Accepted, AcceptedEarly, Decision, Notarised, NotNow
from replica.notary.codes import Code, Retry
from replica.notary.errors import BadRequest, NotActive

Result = Decision | ProblemDocument
"""An answer of the notary, or the problem for which a request never got as far: it must be changed first."""

_notarised = msgspec.json.Decoder(NotarisedDocument)
_accepted = msgspec.json.Decoder(AcceptedDocument)
_problem = msgspec.json.Decoder(ProblemDocument)


def read_answer(status: int, body: bytes) -> Result | Accepted | AcceptedEarly:
    """The result in an answer's body. A body that does not come from the notary leaves the outcome unknown."""
    try:
        match status:
            case HTTPStatus.OK:
                return _of(decode(_notarised, body))
            case HTTPStatus.ACCEPTED:
                return _of(decode(_accepted, body))
            case _:
                return _of(decode(_problem, body))
    except (AnswerUnreadable, BadRequest):
        return unknown(f"no answer: {f'{status} ' if status else ''}{_quoted(body)}")


def read_decision(status: int, body: bytes) -> Result:
    """As `read_answer`, for a call that waits for the outcome."""
    answer = read_answer(status, body)
    if isinstance(answer, Accepted | AcceptedEarly):
        return NotNow(ACCEPTED, "recorded; the outcome is a completion", answer.estimate_s)
    return answer


def code_of(answer: Result | Accepted | AcceptedEarly) -> Code | None:
    """The catalogue's entry of an answer; None for what needs none, and for a code of a newer release."""
    return None if isinstance(answer, Notarised | Accepted | AcceptedEarly) else Code.__members__.get(answer.code)


def unknown(detail: str) -> NotNow:
    """No answer: whether the request was processed is not known."""
    return NotNow(Code.OUTCOME_UNKNOWN.name, detail, 0.0)


def problem_in(body: bytes) -> ProblemDocument | None:
    """The problem in a body; None when the body is something else."""
    try:
        return decode(_problem, body)
    except AnswerUnreadable:
        return None


def why_not(body: bytes) -> NotActive | RequestRejected:
    """The error for an answer that is not the requested document."""
    problem = problem_in(body)
    if problem is not None and (problem.retry is Retry.NO or problem.code == Code.OFFSET_AFTER_END.name):
        return RequestRejected(problem)
    return NotActive(f"no replica answers: {_quoted(body)}")


def _quoted(body: bytes) -> str:
    """The start of a body that is no document, as one line: a proxy's text, or our own note about a dead host."""
    return repr(body[:QUOTE_MAX].decode(errors="backslashreplace"))[1:-1]


def _of(document: NotarisedDocument | AcceptedDocument | ProblemDocument) -> Result | Accepted | AcceptedEarly:
    if isinstance(document, ProblemDocument) and document.code not in Code.__members__:  # of a newer release
        return document if document.retry is Retry.NO else unknown(f"{document.code}: {document.detail}")
    return answer_from_document(document)
