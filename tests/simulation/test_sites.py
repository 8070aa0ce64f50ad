"""A site that was taken over signs nothing: many drawn worlds, and each rule left out once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from pytest import MonkeyPatch

import tests.simulation.sites as sites
from ha.lock.interface import NEVER_S
from ha.site import core, guard
from ha.site.core import CLAIMED_PART, Claim, Silence, Term, Verdict
from tests.simulation.sites import Register, World, simulate

SEEDS = range(40)


def world_of(seed: int) -> World:
    """Every second one is a duel."""
    return simulate(seed, duel=seed % 2 == 0)


@pytest.mark.parametrize("first", range(0, len(SEEDS), 10))
def test_only_the_site_with_the_term_signs(first: int) -> None:
    """Goal: no signature is let out that was made after another site took the term. Method: ten drawn worlds."""
    for seed in SEEDS[first : first + 10]:
        world = world_of(seed)
        assert not world.wrong, f"seed {seed}"
        assert world.signed, f"seed {seed}"


def test_the_worlds_are_not_idle() -> None:
    """Goal: the seeds show what they are for. Method: terms change hands often, and a calm site never stops."""
    worlds = [world_of(seed) for seed in range(10)]
    assert sum(len(world.register.taken) for world in worlds) > 50
    calm = [simulate(seed, calm=True) for seed in range(3)]
    assert all(world.signed and not world.unserved and not world.wrong for world in calm)


def _claims_from_the_answer(patch: MonkeyPatch) -> None:
    """A late answer is believed as if it had come at once."""

    async def renew(self: guard.SiteGuard, log_id: str) -> None:
        term, renewed = await self._witness.renew(self._site, log_id)
        self._claim = core.answered(self._claim, self._clock.boottime_s(), term, renewed=renewed)

    patch.setattr(guard.SiteGuard, "_renew", renew)


def _claims_the_whole_lease(patch: MonkeyPatch) -> None:
    """Clocks are taken to run at one rate."""
    patch.setattr(core, "CLAIMED_PART", 1.0)


def _claims_for_ever(patch: MonkeyPatch) -> None:
    """Who had the term once believes to have it while the witness is silent."""
    patch.setattr(core, "standing", lambda claim, now_s: _never_ends(claim))
    patch.setattr(guard, "standing", lambda claim, now_s: _never_ends(claim))


def _never_ends(claim: Claim) -> core.Standing:
    return core.Standing.UNCONFIRMED if claim.until_s == NEVER_S else core.Standing.IN_TERM


def _does_not_look_again(patch: MonkeyPatch) -> None:
    """A signature that was made goes out, however long it took."""
    patch.setattr(sites, "lets_out", lambda one: True)


def _takes_whatever_the_beat(patch: MonkeyPatch) -> None:
    """The witness does not compare the beat when a term is taken."""

    def take(self: Register, seen: Term | None, following: Term) -> bool:
        now = self.term
        return original(self, seen if seen is None or now is None else replace(seen, beat=now.beat), following)

    original = Register.take
    patch.setattr(Register, "take", take)


def _takes_whatever_the_term(patch: MonkeyPatch) -> None:
    """The witness does not compare the term when another is taken."""

    def take(self: Register, seen: Term | None, following: Term) -> bool:
        return original(self, self.term, following)

    original = Register.take
    patch.setattr(Register, "take", take)


def _takes_at_once(patch: MonkeyPatch) -> None:
    """Whoever wants the term does not wait for the lease."""

    def look(silence: Silence | None, seen: Term | None, at_s: float, waited_s: float) -> tuple[Silence, Verdict]:
        return Silence(seen, at_s), Verdict.TAKE

    patch.setattr(guard, "look", look)


def _trusts_an_empty_witness(patch: MonkeyPatch) -> None:
    """Where the witness has no term, the first one is taken at once."""

    def look(silence: Silence | None, seen: Term | None, at_s: float, waited_s: float) -> tuple[Silence, Verdict]:
        found, verdict = original(silence, seen, at_s, waited_s)
        return found, Verdict.TAKE if seen is None else verdict

    original = guard.look
    patch.setattr(guard, "look", look)


def _counts_from_its_question(patch: MonkeyPatch) -> None:
    """The silence is counted from before the beat was seen: it may have been raised meanwhile."""

    def look(silence: Silence | None, seen: Term | None, at_s: float, waited_s: float) -> tuple[Silence, Verdict]:
        found, verdict = original(silence, seen, at_s, waited_s)
        if silence is None:
            found = replace(found, since_s=found.since_s - 1.8)  # the longest way there and back
        return found, verdict

    original = guard.look
    patch.setattr(guard, "look", look)


def _forgets_that_it_was_renewed(patch: MonkeyPatch) -> None:
    """A beat that changes while somebody waits is passed over."""

    def look(silence: Silence | None, seen: Term | None, at_s: float, waited_s: float) -> tuple[Silence, Verdict]:
        if silence is not None:
            silence = replace(silence, term=seen)
        return original(silence, seen, at_s, waited_s)

    original = guard.look
    patch.setattr(guard, "look", look)


def _any_site_renews(patch: MonkeyPatch) -> None:
    """The witness renews the term for whoever asks."""

    def renew(self: Register, site: str, log_id: str) -> tuple[Term | None, bool]:
        if self.term is None:
            return None, False
        self.term = replace(self.term, beat=self.term.beat + 1)
        return self.term, True

    patch.setattr(Register, "renew", renew)


def _any_log_of_the_site_renews(patch: MonkeyPatch) -> None:
    """The witness does not ask which log it is."""

    def renew(self: Register, site: str, log_id: str) -> tuple[Term | None, bool]:
        return original(self, site, log_id if self.term is None else self.term.log_id)

    original = Register.renew
    patch.setattr(Register, "renew", renew)


def _refusals_count_as_renewals(patch: MonkeyPatch) -> None:
    """Any answer of the witness is good news."""
    original = core.answered
    patch.setattr(guard, "answered", lambda claim, at_s, term, renewed: original(claim, at_s, term, renewed=True))


def _superseded_logs_come_back(patch: MonkeyPatch) -> None:
    """A log that had an earlier term may have the next one."""
    patch.setattr(guard, "is_superseded", lambda seen, log_id: False)


def _former_logs_are_forgotten(patch: MonkeyPatch) -> None:
    """A term names the log before it only."""

    def following(seen: Term | None, site: str, log_id: str, lease_s: float) -> Term:
        found = original(seen, site, log_id, lease_s)
        return replace(found, former_logs=() if seen is None else (seen.log_id,))

    original = guard.next_term
    patch.setattr(guard, "next_term", following)


MUTANTS: dict[Callable[[MonkeyPatch], None], int] = {
    _claims_from_the_answer: 5,
    _claims_the_whole_lease: 0,
    _claims_for_ever: 0,
    _does_not_look_again: 19,
    _takes_whatever_the_beat: 4,
    _takes_whatever_the_term: 4,
    _takes_at_once: 0,
    _trusts_an_empty_witness: 3,
    _counts_from_its_question: 0,
    _forgets_that_it_was_renewed: 0,
    _any_site_renews: 0,
    _any_log_of_the_site_renews: 3,
    _refusals_count_as_renewals: 0,
    _superseded_logs_come_back: 19,
    _former_logs_are_forgotten: 69,
}
"""Each with a seed whose world shows it."""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__.removeprefix("_"))
def test_each_rule_is_needed(mutant: Callable[[MonkeyPatch], None], monkeypatch: MonkeyPatch) -> None:
    """Goal: the worlds notice a rule that is broken. Method: break one, in a world that shows it; then mend it."""
    seed = MUTANTS[mutant]
    assert not world_of(seed).wrong
    mutant(monkeypatch)
    assert world_of(seed).wrong, mutant.__doc__


def test_the_claim_is_shorter_than_the_lease() -> None:
    """Goal: the model's clocks are as far apart as the margin allows, and no farther. Method: the figures."""
    slowest, fastest = 1 - sites.RATE_OFF_MAX, 1 + sites.RATE_OFF_MAX
    assert CLAIMED_PART * fastest < slowest
