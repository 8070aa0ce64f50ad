"""Typed errors of the client library, for callers that prefer exceptions. Each keeps the answer that caused it."""

from __future__ import annotations

from ledger_api.wire.problems import ProblemDocument
from replica.notary.answers import Notarised, NotNow, Refused
from replica.notary.codes import Code
from replica.notary.errors import NotaryError


class ClientError(NotaryError):
    """Base of the client library's errors about an answer."""


class AnswerUnreadable(ClientError):
    """The answer is not one of this API: it is from a proxy or a newer release. The outcome is not known."""

    default_code = Code.ANSWER_UNREADABLE


class TokenUnavailable(ClientError):
    """The application's source of tokens gave none; nothing was sent."""

    default_code = Code.TOKEN_MISSING


class NotarisationRefused(ClientError):
    """The notary refused this request. `refused` has the reason; a conflict lists every state.

    `refused.final` says whether the same request may be notarised later: one that came too early may.
    """

    def __init__(self, refused: Refused) -> None:
        self.refused = refused
        code = _code(refused.code)
        super().__init__(code.title if code.name == refused.code else refused.code, code)


class RequestRejected(ClientError):
    """The request cannot be taken as it is; nothing was logged. Change what `problem` names."""

    def __init__(self, problem: ProblemDocument) -> None:
        self.problem = problem
        super().__init__(problem.detail, _code(problem.code))


class OutcomeUnknown(ClientError):
    """No final answer in the policy's time. Keep the submission, and send it again, unchanged."""

    def __init__(self, answer: NotNow) -> None:
        self.answer = answer
        super().__init__(answer.detail, Code.__members__.get(answer.code, Code.OUTCOME_UNKNOWN))


class ReceiptInvalid(ClientError):
    """A success whose receipt the notary's key does not verify: do not act on it, and inform the operator."""

    default_code = Code.RECEIPT_INVALID

    def __init__(self, answer: Notarised) -> None:
        self.answer = answer
        super().__init__(f"the receipt of {answer.tx_id.hex()} does not verify for what was submitted")


class StreamEnded(ClientError):
    """A stream of completions cannot go on: what it asks for is pruned, hidden, or of another ledger."""

    def __init__(self, problem: ProblemDocument, after: int) -> None:
        self.problem = problem
        self.after = after
        super().__init__(f"{problem.detail} (read up to offset {after})", _code(problem.code))


def success_of(result: Notarised | Refused | NotNow | ProblemDocument) -> Notarised:
    """The success, or the error that fits. Raises NotarisationRefused, RequestRejected, OutcomeUnknown."""
    match result:
        case Notarised():
            return result
        case Refused():
            raise NotarisationRefused(result)
        case NotNow():
            raise OutcomeUnknown(result)
        case problem:
            raise RequestRejected(problem)


def _code(name: str) -> Code:
    """The catalogue's entry; a newer release may have codes that this one does not know."""
    return Code.__members__.get(name, Code.ANSWER_UNREADABLE)
