"""Defects in the lease over the log."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from pytest import MonkeyPatch

import ha.lock.lease
import replica.notary.reading
import tests.simulation.lives
from ha.lock.silence import LeaseView, Silence, heard, is_free
from ha.settings import ElectionSettings
from replica.active.lease_log import FollowedLease
from replica.notary.formats import Formats
from tests.next_version.release import PRESENT
from tests.simulation.draw import draw, leased
from tests.simulation.mutants.registry import mutant
from tests.simulation.parties import registering_by_lease
from tests.simulation.plan import Plan


def _under_a_lease(seed: int) -> Plan:
    return leased(draw(seed))


def _watched(seed: int) -> Plan:
    """Beside log nodes, which see processes end."""
    return msgspec.structs.replace(leased(draw(seed)), watched=True)


@mutant("a waiting replica claims once a heartbeat is missing", _under_a_lease)
def one_missing_heartbeat(patch: MonkeyPatch) -> None:
    def early(view: LeaseView, silence: Silence, settings: ElectionSettings) -> bool:
        return is_free(view, replace(silence, silent_s=5 * silence.silent_s), settings)

    patch.setattr(ha.lock.lease, "is_free", early)


@mutant("readers let a claim count although the holder wrote after what the claimant had read", _watched)
def witness_ignored(patch: MonkeyPatch) -> None:
    patch.setattr(replica.notary.reading, "comes_too_late", lambda *of: False)


@mutant("a claim names the rules of the first claim, whatever was raised and is in the log", registering_by_lease)
def claims_take_rules_back(patch: MonkeyPatch) -> None:
    async def least(self: FollowedLease) -> Formats:
        in_log = self._follower.formats
        return PRESENT if in_log.rules > PRESENT.rules else await to_claim(self)

    to_claim = FollowedLease._to_claim
    patch.setattr(FollowedLease, "_to_claim", least)


@mutant("a holder closes its lifeline while it leads", _watched)
def lifeline_closed_early(patch: MonkeyPatch) -> None:
    show_life = FollowedLease.show_life

    async def closing(self: FollowedLease, activation_id: bytes, number: int) -> bool:
        lives = await show_life(self, activation_id, number)
        if self._lifeline is not None:
            await self._lifeline.close()
        return lives

    patch.setattr(FollowedLease, "show_life", closing)


@mutant("a node takes any lost connection for the end of a process", _watched)
def any_loss_is_an_end(patch: MonkeyPatch) -> None:
    patch.setattr(tests.simulation.lives, "has_closed", lambda error, *, ended_here: True)


@mutant("a silence that the log's servers told is counted again at each look", _watched)
def told_silence_counted_twice(patch: MonkeyPatch) -> None:
    def adding(silence: Silence | None, view: LeaseView, now_s: float) -> Silence:
        found = heard(silence, view, now_s)
        return found if silence is None else replace(found, silent_s=silence.silent_s + view.quiet_s)

    patch.setattr(ha.lock.lease, "heard", adding)
