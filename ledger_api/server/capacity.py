"""The capacity that this front end has left, and each caller's share of it.

Reading and submitting have budgets of their own: who reads much stops nobody from submitting.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Self

from ledger_api.server.byte_budget import ByteBudget
from ledger_api.server.settings import ApiSettings
from replica.link.interface import CoreLink, refuse_as_overloaded, refuse_as_passive
from replica.notary.answers import NotNow
from replica.notary.shares import Shares
from replica.telemetry.counts import ApiCounts


class Use:
    """What a caller has of a bound, from now until it is released (once or more); also counted in a gauge."""

    __slots__ = ("_count", "_counts", "_gauge", "_holder", "_shares")

    def __init__(self, shares: Shares, holder: Hashable, count: int, counts: ApiCounts, gauge: str) -> None:
        self._shares = shares
        self._holder = holder
        self._count = count
        self._counts = counts
        self._gauge = gauge
        shares.hold(holder, count)
        setattr(counts, gauge, getattr(counts, gauge) + count)

    def release(self) -> None:
        """Give it back."""
        count, self._count = self._count, 0
        if count:
            self._shares.free(self._holder, count)
            setattr(self._counts, self._gauge, getattr(self._counts, self._gauge) - count)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Capacity:
    """Gives the reason for a refusal. `answers` and `bodies` are the budgets of all calls together."""

    def __init__(self, core: CoreLink, counts: ApiCounts, settings: ApiSettings, answers: ByteBudget) -> None:
        self._core = core
        self._counts = counts
        self.answers = answers
        self.bodies = ByteBudget(settings.bodies_max_bytes)
        self._submissions = Shares(settings.in_flight_max)
        self._look_ups = Shares(settings.in_flight_max)
        self._reading = Shares(settings.streams_max)
        self._submitting = Shares(settings.streams_max)

    def refusal(self, count: int, holder: Hashable) -> NotNow | None:
        """Why `count` more submissions cannot be taken now; None when they can."""
        return self._refusal(self._submissions, count, holder, "submissions under way")

    def look_up_refusal(self, holder: Hashable) -> NotNow | None:
        """Why one more look-up cannot be taken now; None when it can."""
        return self._refusal(self._look_ups, 1, holder, "look-ups under way")

    def submission_stream(self, holder: Hashable) -> Use | NotNow:
        """One more stream of submissions; or why it cannot be opened now."""
        refusal = self.refusal(1, holder) or self._refusal(self._submitting, 1, holder, "streams of submissions open")
        return refusal or Use(self._submitting, holder, 1, self._counts, "streams")

    def reading_stream(self, holder: Hashable) -> Use | str:
        """One more stream of completions; or why it cannot be opened now."""
        shortage = _shortage(self._reading, 1, holder, "streams of completions open")
        return shortage or Use(self._reading, holder, 1, self._counts, "streams")

    def submit(self, count: int, holder: Hashable) -> Use:
        """While so many submissions of this caller are under way."""
        return Use(self._submissions, holder, count, self._counts, "in_flight")

    def look_up(self, holder: Hashable) -> Use:
        """While the core answers a look-up."""
        return Use(self._look_ups, holder, 1, self._counts, "in_flight")

    def no_bodies(self) -> NotNow:
        """The refusal when the budget has no share left for a body."""
        return self._exhausted(self.bodies, "bodies")

    def no_answers(self) -> NotNow:
        """The refusal when the budget has no share left for the answers to a call."""
        return self._exhausted(self.answers, "answers")

    def _refusal(self, shares: Shares, count: int, holder: Hashable, of_what: str) -> NotNow | None:
        standing = self._core.standing
        if not standing.active:
            return refuse_as_passive(standing)
        shortage = _shortage(shares, count, holder, of_what)
        return None if shortage is None else refuse_as_overloaded(standing, shortage)

    def _exhausted(self, budget: ByteBudget, of_what: str) -> NotNow:
        detail = (
            f"this front end has {budget.held_bytes} bytes of {of_what} under way, as much as it has for this caller"
        )
        return refuse_as_overloaded(self._core.standing, detail)


def _shortage(shares: Shares, count: int, holder: Hashable, of_what: str) -> str | None:
    if shares.has_room(holder, count):
        return None
    return f"this front end has {shares.held} {of_what}, {shares.of(holder)} of them of this caller: that is its share"
