"""The calls of a front end that wait for answers of the core: by ticket, each with its deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from replica.link.interface import LookUpAnswer, TicketedAnswer
from replica.notary.answers import NotNow
from replica.notary.codes import Code

UNKNOWN = NotNow(Code.OUTCOME_UNKNOWN.name, "the core took the request and did not answer", 0.5)
"""What stands in the place of an answer until it comes."""


class PendingCall:
    """Questions asked together: consecutive tickets from `first` on, and the future that gets all their answers."""

    __slots__ = ("answers", "deadline_s", "first", "future", "missing_count", "on_wait")

    def __init__(
        self,
        first: int,
        count: int,
        deadline_s: float,
        future: asyncio.Future[list[LookUpAnswer]],
        on_wait: Callable[[float], None] | None = None,
    ) -> None:
        self.first = first
        self.answers: list[LookUpAnswer] = [UNKNOWN] * count
        self.missing_count = count
        self.deadline_s = deadline_s
        self.future = future
        self.on_wait = on_wait

    def finish(self) -> None:
        """Resolve the future with what is known. The caller may be gone."""
        if not self.future.done():
            self.future.set_result(self.answers)


class PendingCalls:
    """Pending calls and their tickets.

    A ticket stays open until the core answers it, even when no caller waits for it any more. So the number of open
    tickets bounds the work that the core has in progress for this front end.
    """

    def __init__(self, answer_max_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._answer_max_s = answer_max_s
        self._next = 0
        self._by_ticket: dict[int, PendingCall] = {}
        self._waiting: dict[int, PendingCall] = {}  # by first ticket, so oldest first

    @property
    def open_count(self) -> int:
        """Tickets that the core has not answered."""
        return len(self._by_ticket)

    def open(self, count: int, on_wait: Callable[[float], None] | None = None) -> PendingCall:
        """Take `count` new tickets in a row."""
        first = self._next
        self._next = first + count
        call = PendingCall(first, count, self._loop.time() + self._answer_max_s, self._loop.create_future(), on_wait)
        self._waiting[first] = call
        for ticket in range(first, first + count):
            self._by_ticket[ticket] = call
        return call

    def settle(self, answers: Iterable[TicketedAnswer]) -> None:
        """Record answers of the core. Answers to calls that were given up are ignored."""
        for ticket, answer in answers:
            call = self._by_ticket.pop(ticket, None)
            if call is None or call.first not in self._waiting:
                continue
            call.answers[ticket - call.first] = answer
            call.missing_count -= 1
            if not call.missing_count:
                del self._waiting[call.first]
                call.finish()

    def prolong(self, tickets: Iterable[int], wait_s: float) -> None:
        """Answers may take this long: report it to the callers, and postpone their deadlines. None moves earlier."""
        deadline_s = self._loop.time() + wait_s
        calls = {call.first: call for ticket in tickets if (call := self._by_ticket.get(ticket)) is not None}
        for call in calls.values():
            call.deadline_s = max(call.deadline_s, deadline_s)
            if call.on_wait is not None and call.first in self._waiting:
                call.on_wait(wait_s)

    def expire(self) -> None:
        """Give up the calls whose deadline has passed."""
        now_s = self._loop.time()
        for call in [call for call in self._waiting.values() if call.deadline_s <= now_s]:
            del self._waiting[call.first]
            call.finish()

    def abandon(self) -> None:
        """Give up all calls: the core is gone."""
        calls = list(self._waiting.values())
        self._waiting.clear()
        self._by_ticket.clear()
        for call in calls:
            call.finish()
