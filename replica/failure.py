"""How an error of either family is reported to people and supervisors.

`NotaryError` has its code in the catalogue. `HaError` belongs to `ha`, which does not import the catalogue: each class
has its own code, remedy and retry. This is the one place that reads both.
"""

from __future__ import annotations

from ha.errors import HaError, TransitionFailed
from ha.invariant import InvariantBroken
from replica.notary.codes import Code
from replica.notary.errors import NotaryError
from replica.notary.exit_codes import EXIT_CONFIGURATION, EXIT_FAILED

DEFECT_REMEDY = (
    "This is a defect of the notary: keep the log of this process, and report it. A replica is started again by its "
    "supervisor; if it ends so again, another one serves meanwhile."
)  # the catalogue's remedy for INTERNAL is for who sends requests


def error_document(error: HaError | NotaryError | InvariantBroken) -> dict[str, str]:
    """Code, detail and remedy of a failure; for a transition that failed, those of its cause."""
    cause = error.__cause__
    match error:
        case TransitionFailed() if isinstance(cause, HaError | NotaryError | InvariantBroken):
            return error_document(cause)
        case HaError():
            return {"code": error.code, "detail": error.detail, "remedy": error.remedy}
        case NotaryError():
            return {"code": error.code.name, "detail": error.detail, "remedy": error.code.remedy}
        case InvariantBroken():
            return {"code": error.code, "detail": error.detail, "remedy": DEFECT_REMEDY}


def in_a_line(error: BaseException) -> str:
    """What went wrong, with its code, as one line; of an error that nobody expected, its type."""
    if isinstance(error, NotaryError | HaError | InvariantBroken):
        document = error_document(error)
        return f"{document['code']}: {one_line(document['detail'])}"
    return f"{Code.INTERNAL.name}: {type(error).__name__}: {one_line(str(error))}"


def one_line(text: str) -> str:
    """The text as one line. A driver's text may have several lines, and hints that only its own users understand."""
    return " ".join(text.split())


def exit_code(error: BaseException) -> int:
    """The exit code for this error: the supervisor starts the process again, or waits for a person.

    A failed transition is judged by its cause; without one, the process is started again. So it is after a bug: the
    next process may be able to read a log or an index that this one could not read.
    """
    if isinstance(error, TransitionFailed) and error.__cause__ is not None:
        return exit_code(error.__cause__)
    person = isinstance(error, HaError | NotaryError) and error.person
    return EXIT_CONFIGURATION if person else EXIT_FAILED
