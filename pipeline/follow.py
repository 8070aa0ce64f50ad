"""Carries on a job that follows the log for ever: whatever fails for a while is tried again, later and later."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from replica.notary.errors import NotaryError

RETRY_FIRST_S = 1.0
RETRY_MAX_S = 60.0

Succeeded = Callable[[int], None]  # with the log offset that the job reached


def retry_delay_s(failures: int) -> float:
    """Seconds to wait after so many failures in a row, 1 or more: twice as long each time, up to RETRY_MAX_S."""
    return float(min(RETRY_MAX_S, RETRY_FIRST_S * 2 ** min(failures - 1, 10)))


def keep_following(
    attempt: Callable[[Succeeded], None],
    succeeded: Succeeded,
    failed: Callable[[NotaryError, float], None],
    sleep_s: Callable[[float], None],
) -> NoReturn:
    """Attempt again and again. An attempt opens everything anew, follows the log, and tells each success.

    `failed` gets the error, and the seconds until the next attempt. Raises an error that needs a person first.
    """
    failures = 0

    def note(offset: int) -> None:
        nonlocal failures
        failures = 0
        succeeded(offset)

    while True:
        try:
            attempt(note)
        except NotaryError as error:
            if error.person:
                raise
            failures += 1
            delay_s = retry_delay_s(failures)
            failed(error, delay_s)
            sleep_s(delay_s)
