"""Cause, message and code of an error that ends an activation."""

from __future__ import annotations

from ha.ending import Cause, Ending
from ha.errors import HaError, TransitionFailed
from replica.notary.codes import Code
from replica.notary.errors import InvariantBroken, NotaryError


def ending_of(error: BaseException, cause: Cause = Cause.FAILED) -> Ending:
    """Cause, message and stable code; for a transition that failed, those of its cause."""
    if isinstance(error, TransitionFailed) and error.__cause__ is not None:
        return ending_of(error.__cause__, cause)
    if isinstance(error, HaError):
        return Ending(cause, error.detail, error.code)
    if isinstance(error, NotaryError):
        return Ending(cause, error.detail, error.code.name)
    if isinstance(error, InvariantBroken):
        return Ending(cause, error.detail, error.code)
    return Ending(cause, f"{type(error).__name__}: {error}", Code.INTERNAL.name)
