"""The sites' term: the decisions, one by one; tests/simulation/test_sites.py plays them together."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from pydantic import ValidationError

from ha.errors import HaError, SiteTakenOver, WitnessUnavailable
from ha.lock.interface import NEVER_S
from ha.site.core import (
    CLAIMED_PART,
    Claim,
    Silence,
    Standing,
    Term,
    Verdict,
    answered,
    is_superseded,
    look,
    next_term,
    standing,
)
from ha.site.guard import SiteGuard
from ha.site.settings import SiteSettings
from tests.simulation.sites import RateClock, Register
from tests.simulation.virtual import run_virtually
from tests.virtual_time import on_virtual_time

TERM = Term(4, "b", "log-b", 10.0, beat=7, former_logs=("log-a",))


def test_a_claim_counts_from_the_question() -> None:
    """Goal: a claim ends before its lease. Method: an answer, at both sides of its end; a late one takes none back."""
    claim = answered(Claim(), 100.0, TERM, renewed=True)
    end_s = 100.0 + CLAIMED_PART * TERM.lease_s
    assert standing(claim, end_s - 0.001) is Standing.IN_TERM
    assert standing(claim, end_s) is Standing.UNCONFIRMED
    assert answered(claim, 90.0, TERM, renewed=True) == claim


@pytest.mark.parametrize(("term", "found"), [(TERM, Standing.TAKEN_OVER), (None, Standing.UNCONFIRMED)])
def test_a_refusal_ends_the_claim_at_once(term: Term | None, found: Standing) -> None:
    """Goal: who is told that another has the term serves no more. Method: a claim that had long to go."""
    claim = answered(answered(Claim(), 100.0, TERM, renewed=True), 101.0, term, renewed=False)
    assert (claim.until_s, standing(claim, 101.0)) == (NEVER_S, found)


def test_a_term_is_taken_after_a_whole_lease_of_silence() -> None:
    """Goal: nothing is taken early. Method: first, just before the end, at it; another beat or term; no term."""
    for term in (TERM, None):
        silence, verdict = look(None, term, 50.0, 10.0)
        assert (silence, verdict) == (Silence(term, 50.0), Verdict.WAIT)
        assert look(silence, term, 59.999, 10.0)[1] is Verdict.WAIT
        assert look(silence, term, 60.0, 10.0)[1] is Verdict.TAKE
        for other in (replace(TERM, beat=8), replace(TERM, number=5)):
            assert look(silence, other, 60.0, 10.0)[1] is Verdict.SERVES


def test_no_log_has_a_second_term() -> None:
    """Goal: a log that lacks later records is known. Method: three logs, one after the other; the second one twice."""
    third = next_term(TERM, "a", "copy", 5.0)
    assert third == Term(5, "a", "copy", 5.0, beat=0, former_logs=("log-a", "log-b"))
    assert [is_superseded(third, log) for log in ("log-a", "log-b", "copy", "new")] == [True, True, False, False]
    assert next_term(third, "b", "copy", 5.0).former_logs == ("log-a", "log-b")
    assert next_term(third, "b", "log-b", 5.0).former_logs == ("log-a", "copy")
    assert not is_superseded(None, "log-a")


class Answers(Register):
    """A witness whose answers a test chooses."""

    silent = False

    async def see(self) -> Term | None:
        return self.term

    async def renew(self, site: str, log_id: str) -> tuple[Term | None, bool]:  # type: ignore[override]
        if self.silent:
            await asyncio.sleep(1e6)
        return Register.renew(self, site, log_id)

    async def take(self, seen: Term | None, following: Term) -> bool:  # type: ignore[override]
        return Register.take(self, seen, following)


def test_a_guard_says_why_its_replica_may_not_serve() -> None:
    """Goal: each reason has its code, told once. Method: no log yet, no term, the term, a silent witness, another's."""

    async def live() -> list[HaError | None]:
        witness, told, log_ids = Answers(), list[HaError | None](), list[str]()

        async def log_id() -> str:
            return log_ids[0]

        one = SiteGuard(witness, "a", log_id, clock=RateClock(1.0, 5.0), lease_s=10.0)
        running = asyncio.create_task(one.run(told.append))
        await asyncio.sleep(3)
        log_ids.append("log-a")
        await asyncio.sleep(3)
        witness.term = Term(1, "a", "log-a", 10.0)
        await asyncio.sleep(3)
        assert one.in_term() and one.why_not() is None and 7 < one.left_s() <= 9
        witness.silent = True
        await asyncio.sleep(12)
        assert not one.in_term() and one.left_s() == 0
        witness.silent, witness.term = False, TERM
        await asyncio.sleep(3)
        running.cancel()
        return told

    first, second, third, fourth = run_virtually(live())
    assert isinstance(first, WitnessUnavailable) and second is None
    assert isinstance(third, WitnessUnavailable) and "no answer within 1 s" in third.detail
    assert isinstance(fourth, SiteTakenOver) and str(TERM) in fourth.detail


def test_a_lease_that_is_changed_in_the_configuration_stops_nobody() -> None:
    """Goal: the term's own lease gives the beat until another is taken. Method: a configuration with twenty times the
    lease; the replica is asked all the time."""

    async def live() -> None:
        witness = Answers()
        witness.term = Term(1, "a", "log-a", 5.0)
        one = SiteGuard(witness, "a", named, clock=RateClock(1.0, 5.0), lease_s=100.0)
        running = asyncio.create_task(one.run(told.append))
        for _ in range(300):
            await asyncio.sleep(0.1)
            assert one.in_term()
        running.cancel()

    told: list[HaError | None] = []
    run_virtually(live())
    assert told == [None]


@on_virtual_time
async def test_a_log_that_is_slow_to_name_itself_is_waited_for() -> None:
    """Goal: a short lease does not hurry the log, which is asked once. Method: it takes two leases."""

    async def slow() -> str:
        await asyncio.sleep(2.0)
        return await named()

    witness = Answers()
    witness.term = Term(1, "a", "log-a", 1.0)
    one = SiteGuard(witness, "a", slow, clock=RateClock(1.0, 5.0), lease_s=1.0)
    running = asyncio.create_task(one.run(lambda _: None))
    await asyncio.sleep(2.5)
    assert one.in_term()
    running.cancel()


async def named() -> str:
    return "log-a"


@pytest.mark.parametrize(
    ("values", "wrong"),
    [
        ({"name": "Site A"}, "pattern"),
        ({"witness": "host=w password=x"}, "witness_password_file"),
        ({"witness": "host"}, "no connection string"),
        ({"lease_s": 0.5}, "greater than or equal"),
    ],
)
def test_a_site_that_cannot_be_is_refused(values: dict[str, object], wrong: str) -> None:
    """Goal: `config check` names the mistake. Method: one each."""
    right: dict[str, object] = {"name": "a", "witness": "host=w dbname=site"}
    assert SiteSettings.model_validate(right).lease_s == 30.0
    with pytest.raises(ValidationError, match=wrong):
        SiteSettings.model_validate(right | values)
