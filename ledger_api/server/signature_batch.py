"""One signature check for the single calls of one turn of the event loop."""

from __future__ import annotations

import asyncio

from ledger_api.server.validation import Validator
from replica.native.signatures import checks_together
from replica.notary.errors import BadRequest
from replica.notary.requests import Submission

BATCH_MAX = 64  # about a millisecond


class SignatureBatcher:
    """Under load a turn reads many calls. Checking their signatures together costs a fraction of one by one."""

    def __init__(self, validator: Validator) -> None:
        self._validator = validator
        self._gathers = checks_together()
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[Submission, asyncio.Future[BadRequest | None]]] = []

    async def check(self, submission: Submission) -> None:
        """Check the signature of a submission that the validator has read. Raises BadRequest if it is bad."""
        if not self._gathers:
            (error,) = self._validator.signature_errors([submission])
        else:
            future: asyncio.Future[BadRequest | None] = self._loop.create_future()
            self._waiting.append((submission, future))
            if len(self._waiting) == 1:
                self._loop.call_soon(self._check_all)
            elif len(self._waiting) == BATCH_MAX:
                self._check_all()
            error = await future
        if error is not None:
            raise error

    def _check_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return  # a full batch was checked before the end of the turn
        errors = self._validator.signature_errors([submission for submission, _ in waiting])
        for (_, future), error in zip(waiting, errors, strict=True):
            if not future.done():  # the caller may be gone
                future.set_result(error)
