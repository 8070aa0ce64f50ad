"""Signatures of calls that come one by one, checked together all the same: those of one turn of the event loop."""

from __future__ import annotations

import asyncio

from ledger_api.server.gate import Gate
from replica.notary.errors import BadRequest
from replica.notary.requests import Submission
from replica.notary.signatures import checks_together

_TOGETHER_MAX = 64  # about a millisecond


class SignatureDesk:
    """Under load a turn reads many calls, and checking them together costs a fraction of one by one."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._gathers = checks_together()
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[Submission, asyncio.Future[BadRequest | None]]] = []

    async def check(self, submission: Submission) -> None:
        """Raises BadRequest unless the signature of a submission that the gate has read holds."""
        if not self._gathers:
            (forgery,) = self._gate.forgeries([submission])
        else:
            future: asyncio.Future[BadRequest | None] = self._loop.create_future()
            self._waiting.append((submission, future))
            if len(self._waiting) == 1:
                self._loop.call_soon(self._check_all)
            elif len(self._waiting) == _TOGETHER_MAX:
                self._check_all()
            forgery = await future
        if forgery is not None:
            raise forgery

    def _check_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return  # there were too many for one turn: they were checked before its end
        forgeries = self._gate.forgeries([submission for submission, _ in waiting])
        for (_, future), forgery in zip(waiting, forgeries, strict=True):
            if not future.done():  # its caller may be gone
                future.set_result(forgery)
