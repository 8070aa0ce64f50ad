"""What an error says to people and supervisors, whichever of the two families it is of.

`NotaryError` has its code in the catalogue. `HaError` is of a room that stands alone and knows no catalogue: each class
has its own code, remedy and retry. This is the one place that reads both.
"""

from __future__ import annotations

from ha.errors import HaError, TransitionFailed
from ha.invariant import InvariantBroken
from replica.notary.errors import Code, NotaryError
from replica.notary.exit_codes import EXIT_CONFIGURATION, EXIT_FAILED


def told_of(error: HaError | NotaryError | InvariantBroken) -> dict[str, str]:
    """Code, detail and remedy of a failure; of a transition that failed, those of its cause."""
    cause = error.__cause__
    match error:
        case TransitionFailed() if isinstance(cause, HaError | NotaryError | InvariantBroken):
            return told_of(cause)
        case HaError():
            return {"code": error.code, "detail": error.detail, "remedy": error.remedy}
        case NotaryError():
            return {"code": error.code.name, "detail": error.detail, "remedy": error.code.remedy}
        case InvariantBroken():
            return {"code": error.code, "detail": error.detail, "remedy": Code[error.code].remedy}


def exit_code(error: BaseException) -> int:
    """What the supervisor of a process that ends with this error does: start it again, or wait for a person.

    A transition that failed is judged by what made it fail; by itself it is the usual reason to start again. So is a
    bug: a log or an index that could not be read may well be readable for the next process.
    """
    if isinstance(error, TransitionFailed) and error.__cause__ is not None:
        return exit_code(error.__cause__)
    person = isinstance(error, HaError | NotaryError) and error.person
    return EXIT_CONFIGURATION if person else EXIT_FAILED
