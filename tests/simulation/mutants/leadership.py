"""Defects in leadership, and in the claim to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pytest import MonkeyPatch

import ha.election.core
from ha.election.driver import Election
from ha.election.states import Activating, Active, SteppingDown
from ha.lock.interface import NEVER_S
from ha.lock.memory import MemoryLockSession
from replica.active.activation import Activation
from tests.simulation.mutants.registry import mutant


@mutant("a passive takes an interrupted lock without waiting for the grace period")
def grace_ignored(patch: MonkeyPatch) -> None:
    may_ask = ha.election.core.may_ask

    def impatient(state: Any, tick: Any, now_s: float, settings: Any) -> bool:
        return may_ask(state, tick, now_s, replace(settings, grace_s=0.0))

    patch.setattr(ha.election.core, "may_ask", impatient)


def _leading_in(patch: MonkeyPatch, *states: type) -> None:
    def until_s(self: Election[Any]) -> float:
        if not isinstance(self._state, states) or self._session is None or self._session.closed:
            return NEVER_S
        return float(self._session.answered_at_s + self._settings.confirmed_age_max_s)

    patch.setattr(Election, "leads_until_s", property(until_s))


@mutant("health says active while the replica steps down")
def active_during_step_down(patch: MonkeyPatch) -> None:
    _leading_in(patch, Active, SteppingDown)


@mutant("health says active before the barrier is applied")
def active_before_the_barrier(patch: MonkeyPatch) -> None:
    _leading_in(patch, Active, Activating)
    opened = Activation.open

    async def eager(self: Activation) -> None:
        self.serving = True
        await opened(self)

    patch.setattr(Activation, "open", eager)


@mutant("a replica leads until it hears otherwise, however old its last answer")
def lease_ignored(patch: MonkeyPatch) -> None:
    def leads(self: Election[Any]) -> bool:
        return isinstance(self._state, Active) and self._session is not None and not self._session.closed

    patch.setattr(Election, "is_leading", leads)


@mutant("the lease counts from the answer, not from when the question was sent")
def lease_counted_from_the_answer(patch: MonkeyPatch) -> None:
    answered = vars(MemoryLockSession)["answered_at_s"].fget
    seen: dict[int, tuple[float, float]] = {}

    def late_s(self: MemoryLockSession) -> float:
        sent_s = float(answered(self))
        known_s, heard_s = seen.get(id(self), (NEVER_S, NEVER_S))
        if sent_s > known_s:
            heard_s = self._clock.boottime_s()
            seen[id(self)] = (sent_s, heard_s)
        return heard_s

    patch.setattr(MemoryLockSession, "answered_at_s", property(late_s))
