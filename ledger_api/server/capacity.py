"""The capacity that this front end has left: for submissions under way, and for bytes held for callers."""

from __future__ import annotations

from ledger_api.server.byte_budget import ByteBudget
from ledger_api.server.settings import ApiSettings
from replica.link.interface import CoreLink, refuse_as_overloaded, refuse_as_passive
from replica.notary.answers import NotNow
from replica.telemetry.counts import ApiCounts


class Capacity:
    """Gives the reason for a refusal. `answers` and `bodies` are the budgets of all calls together."""

    def __init__(self, core: CoreLink, counts: ApiCounts, settings: ApiSettings, answers: ByteBudget) -> None:
        self._core = core
        self._counts = counts
        self._settings = settings
        self.answers = answers
        self.bodies = ByteBudget(settings.bodies_max_bytes)

    def refusal(self, count: int) -> NotNow | None:
        """Why `count` more submissions cannot be taken now; None when they can."""
        standing = self._core.standing
        if not standing.active:
            return refuse_as_passive(standing)
        if self._counts.in_flight + count <= self._settings.in_flight_max:
            return None
        return refuse_as_overloaded(standing, f"this front end has {self._counts.in_flight} submissions under way")

    def stream_refusal(self) -> NotNow | None:
        """Why one more stream of submissions cannot be opened now; None when it can."""
        refusal = self.refusal(1)
        if refusal is None and self._counts.streams >= self._settings.streams_max:
            detail = f"this front end has {self._counts.streams} streams open"
            refusal = refuse_as_overloaded(self._core.standing, detail)
        return refusal

    def no_bodies(self) -> NotNow:
        """The refusal when the budget has no share left for a body."""
        return self._exhausted(self.bodies, "bodies")

    def no_answers(self) -> NotNow:
        """The refusal when the budget has no share left for the answers to a call."""
        return self._exhausted(self.answers, "answers")

    def _exhausted(self, budget: ByteBudget, of_what: str) -> NotNow:
        held_bytes = budget.held_bytes
        detail = f"this front end has {held_bytes} bytes of {of_what} under way, as much as it has for this caller"
        return refuse_as_overloaded(self._core.standing, detail)
