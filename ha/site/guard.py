"""Carries out what core.py decides: a replica that renews its site's term, and an operator who takes the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from ha.clock import Clock
from ha.errors import HaError, SiteLogSuperseded, SiteServes, SiteTakenOver, WitnessUnavailable
from ha.site.core import (
    BEATS_PER_LEASE,
    Claim,
    Standing,
    Term,
    Verdict,
    answered,
    is_superseded,
    look,
    next_term,
    standing,
)

if TYPE_CHECKING:
    from ha.site.witness import Witness  # which loads a database's client

LOG_ANSWER_MAX_S = 30.0  # to name its identity, once in a replica's life
_T = TypeVar("_T")


class SiteGuard:
    """Renews, from `run` until that is cancelled. Ask `in_term` after each act that only the site with the term may do,
    before its result is let out: a process that was suspended meanwhile must not act as if it had the term."""

    def __init__(
        self,
        witness: Witness,
        site: str,
        log_id: Callable[[], Awaitable[str]],
        *,
        clock: Clock,
        lease_s: float,
    ) -> None:
        """`log_id` raises any error while the log's identity cannot be asked for. `lease_s`: of this site's
        configuration; where the term's is shorter, that one gives the beat."""
        self._witness = witness
        self._site = site
        self._log_id = log_id
        self._clock = clock
        self._lease_s = lease_s
        self._beat_s = lease_s / BEATS_PER_LEASE
        self._claim = Claim()
        self._problem = "the witness was not asked yet"

    def standing(self) -> Standing:
        """Whether this site has the term, at this moment."""
        return standing(self._claim, self._clock.boottime_s())

    def in_term(self) -> bool:
        """Whether this replica may serve and sign, at this moment."""
        return self.standing() is Standing.IN_TERM

    def left_s(self) -> float:
        """Seconds for which this replica may serve if it hears nothing more; 0 if it may not."""
        return max(0.0, self._claim.until_s - self._clock.boottime_s())

    def why_not(self) -> HaError | None:
        """Why this replica may not serve; None if it may."""
        match self.standing():
            case Standing.IN_TERM:
                return None
            case Standing.TAKEN_OVER:
                return SiteTakenOver(f"this is site {self._site}, and the witness has {self._claim.other}")
            case Standing.UNCONFIRMED:
                return WitnessUnavailable(f"site {self._site} has not renewed its term: {self._problem}")

    async def run(self, on_changed: Callable[[HaError | None], None]) -> None:
        """Renew the term, `BEATS_PER_LEASE` times in a lease. `on_changed` is called when the site has got the term
        (None), or has it no more and why; not before the first answer."""
        log_id: str | None = None
        standing: Standing | None = None
        while True:
            if log_id is None:
                log_id = await self._answer(self._log_id(), LOG_ANSWER_MAX_S)
            if log_id is not None:
                await self._answer(self._renew(log_id), self._beat_s)
            if self.standing() is not standing:
                standing = self.standing()
                on_changed(self.why_not())
            await self._clock.sleep_s(self._beat_s)

    async def _answer(self, asked: Awaitable[_T], answer_max_s: float) -> _T | None:
        """None without an answer in that time: whatever the reason is, the claim ends by itself."""
        try:
            async with asyncio.timeout(answer_max_s):
                return await asked
        except Exception as error:
            said = error.detail if isinstance(error, HaError) else str(error)
            self._problem = said or f"no answer within {answer_max_s:g} s"
            return None

    async def _renew(self, log_id: str) -> None:
        asked_at_s = self._clock.boottime_s()
        term, renewed = await self._witness.renew(self._site, log_id)
        self._claim = answered(self._claim, asked_at_s, term, renewed=renewed)
        self._beat_s = min(self._lease_s, self._lease_s if term is None else term.lease_s) / BEATS_PER_LEASE
        self._problem = "the witness has no term: notary site take" if term is None else "it did not ask in time"


async def take(
    witness: Witness,
    site: str,
    log_id: str,
    clock: Clock,
    *,
    lease_s: float,
    though_superseded: bool = False,
    on_wait: Callable[[Term | None, float], None] = lambda term, lease_s: None,
) -> Term:
    """Take the next term for a site and its log, once nobody has renewed the present one for its whole lease.

    `lease_s`: of the next term; it is waited for where the witness has none. `though_superseded`: an operator says that
    the terms since that of this log served nothing. `on_wait` is told the term that is waited for, and for how long.
    Raises SiteServes, SiteLogSuperseded and WitnessUnavailable.
    """
    silence = None
    while True:
        seen = await witness.see()
        if is_superseded(seen, log_id) and not though_superseded:
            raise SiteLogSuperseded(f"log {log_id} had an earlier term; the witness has {seen}")
        waited_s = lease_s if seen is None else seen.lease_s
        if silence is None:
            on_wait(seen, waited_s)
        silence, verdict = look(silence, seen, clock.boottime_s(), waited_s)
        if verdict is Verdict.SERVES:
            raise SiteServes(f"it was renewed, or taken, a moment ago: {seen}")
        if verdict is Verdict.TAKE:
            following = next_term(seen, site, log_id, lease_s)
            if not await witness.take(seen, following):
                raise SiteServes(f"it was renewed, or taken, a moment ago: {seen}")
            return following
        await clock.sleep_s(waited_s / BEATS_PER_LEASE)
