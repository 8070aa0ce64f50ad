"""The link without a socket: front end and core in one process and event loop, for tests and the simulator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import cast

from replica.link.change_signal import ChangeSignal
from replica.link.interface import (
    DEFAULT_OPTIONS,
    Handler,
    LogAnswer,
    LogQuestion,
    LookUpAnswer,
    PeerSeen,
    Standing,
    SubmitOptions,
    TicketedAnswer,
    refuse_as_passive,
)
from replica.link.pending_calls import PendingCalls
from replica.notary.answers import Answer, NotNow, StateStatus
from replica.notary.requests import Submission


class MemoryLink:
    """A `CoreLink` over a handler, and the `Replies` of what it asks. Answers arrive in a later turn of the loop."""

    def __init__(self, handler: Handler, answer_max_s: float = 15.0) -> None:
        self._handler = handler
        self._loop = asyncio.get_running_loop()
        self._answer_max_s = answer_max_s
        self._pending = PendingCalls(answer_max_s)
        self._is_cut = False
        self.standing_changes = ChangeSignal()  # notified by the code that announces the handler's standing
        self.peers: Sequence[PeerSeen] = ()

    @property
    def standing(self) -> Standing:
        """The handler's standing; passive once the link is cut."""
        standing = self._handler.standing()
        return standing.as_passive() if self._is_cut else standing

    @property
    def is_silent(self) -> bool:
        """Once the link is cut."""
        return self._is_cut

    async def submit(
        self,
        submissions: Sequence[Submission],
        options: SubmitOptions = DEFAULT_OPTIONS,
        on_wait: Callable[[float], None] | None = None,
    ) -> list[Answer]:
        """See CoreLink."""
        if not submissions:
            return []
        standing = self.standing
        if not standing.active:
            return [refuse_as_passive(standing)] * len(submissions)
        call = self._pending.open(len(submissions), on_wait)
        self._loop.call_later(self._answer_max_s, self._pending.expire)
        self._handler.submit(self, list(enumerate(submissions, call.first)), options)
        return cast("list[Answer]", await call.future)

    async def look_up(self, tx_id: bytes) -> Answer:
        """See CoreLink."""
        return cast(Answer, await self._ask(tx_id))

    async def look_up_state(self, state: bytes) -> StateStatus | NotNow:
        """See CoreLink."""
        return cast("StateStatus | NotNow", await self._ask(state))

    async def ask_log(self, question: LogQuestion) -> LogAnswer:
        """See CoreLink."""
        if self._is_cut:
            return refuse_as_passive(self.standing)
        call = self._pending.open(1)
        self._loop.call_later(self._answer_max_s, self._pending.expire)
        self._handler.ask_log(self, call.first, question)
        return cast("LogAnswer", (await call.future)[0])

    async def _ask(self, name: bytes) -> LookUpAnswer:
        standing = self.standing
        if not standing.active:
            return refuse_as_passive(standing)
        call = self._pending.open(1)
        self._loop.call_later(self._answer_max_s, self._pending.expire)
        self._handler.look_up(self, [(call.first, name)])
        return (await call.future)[0]

    def send(self, answers: Sequence[TicketedAnswer]) -> None:
        """See Replies."""
        if not self._is_cut:
            self._loop.call_soon(self._pending.settle, answers)

    def wait(self, tickets: Sequence[int], wait_s: float) -> None:
        """See Replies."""
        if not self._is_cut:
            self._loop.call_soon(self._prolong, list(tickets), wait_s)

    def _prolong(self, tickets: list[int], wait_s: float) -> None:
        self._pending.prolong(tickets, wait_s)
        self._loop.call_later(max(wait_s, self._answer_max_s), self._pending.expire)

    def cut(self) -> None:
        """The front end loses its core: open questions have an unknown outcome, and the core counts as passive."""
        self._is_cut = True
        self._pending.abandon()
        self.standing_changes.notify()
