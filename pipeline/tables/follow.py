"""Follows the log for ever: whatever fails for a while is tried again, later and later."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NoReturn

from replica.notary.errors import NotaryError

RETRY_FIRST_S = 1.0
RETRY_MAX_S = 60.0

Succeeded = Callable[[int], None]  # with the log offset that the tables reached


def retry_delay_s(failures: int) -> float:
    """Seconds to wait after so many failures in a row, 1 or more: twice as long each time, up to RETRY_MAX_S."""
    return float(min(RETRY_MAX_S, RETRY_FIRST_S * 2 ** min(failures - 1, 10)))


async def keep_following(
    write: Callable[[Succeeded], Awaitable[None]],
    succeeded: Succeeded,
    failed: Callable[[NotaryError, float], None],
    sleep_s: Callable[[float], Awaitable[None]],
) -> NoReturn:
    """Run `write` again and again. It opens everything anew, follows the log, and tells each success.

    `failed` gets the error, and the seconds until the next attempt. Raises an error that needs a person first.
    """
    failures = 0

    def note(offset: int) -> None:
        nonlocal failures
        failures = 0
        succeeded(offset)

    while True:
        try:
            await write(note)
        except NotaryError as error:
            if error.person:
                raise
            failures += 1
            delay_s = retry_delay_s(failures)
            failed(error, delay_s)
            await sleep_s(delay_s)
