"""Which of two sites may serve: the decision. Pure; times are boot times in seconds of the machine that decides.

A *term* names one site and its log. A *witness* outside the site keeps the newest term, with a *beat* that every
renewal raises. A replica serves while its claim lasts: a part of the lease, from when it *asked* for the renewal. The
other site takes the next term once it has seen the same beat for a whole lease, counted from when it was *answered*,
and only if the beat is still that one. So it takes nothing that a replica anywhere may still claim: each renewal that
succeeded came before the beat was seen, or makes the taking fail. A witness without a term is waited for, too: it may
be an empty one in place of one that was lost. No two clocks are compared, and none is set.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from ha.lock.interface import NEVER_S

CLAIMED_PART = 0.9
"""The part of a lease that a replica claims. The rest is for clocks that run at different rates."""
BEATS_PER_LEASE = 10


@dataclass(frozen=True, slots=True)
class Term:
    """What the witness keeps. `former_logs`: those that earlier terms named, none of which may serve again."""

    number: int
    site: str
    log_id: str
    lease_s: float
    beat: int = 0
    former_logs: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"term {self.number} of site {self.site}, with log {self.log_id}"


@dataclass(frozen=True, slots=True)
class Claim:
    """What a replica knows of the term. `other`: the term that the witness has instead of its site's."""

    until_s: float = NEVER_S
    other: Term | None = None


class Standing(StrEnum):
    """What a replica may say about its site."""

    IN_TERM = "in_term"
    TAKEN_OVER = "taken_over"  # the witness has another term
    UNCONFIRMED = "unconfirmed"  # the witness has not answered in time, or has no term


def answered(claim: Claim, asked_at_s: float, term: Term | None, *, renewed: bool) -> Claim:
    """The claim after the witness's answer to a renewal that was asked for at that time."""
    if term is None:
        return Claim()
    if not renewed:
        return Claim(other=term)
    return Claim(max(claim.until_s, asked_at_s + CLAIMED_PART * term.lease_s))


def standing(claim: Claim, now_s: float) -> Standing:
    """Whether the replica's site has the term, at this moment."""
    if now_s < claim.until_s:
        return Standing.IN_TERM
    return Standing.UNCONFIRMED if claim.other is None else Standing.TAKEN_OVER


# ---- taking ----


@dataclass(frozen=True, slots=True)
class Silence:
    """The term that was seen, if there was one, and since when its beat has not changed."""

    term: Term | None
    since_s: float


class Verdict(StrEnum):
    """What whoever wants the next term does after a look at the witness."""

    WAIT = "wait"
    TAKE = "take"
    SERVES = "serves"  # somebody renews the term, or has taken another


def look(silence: Silence | None, seen: Term | None, answered_at_s: float, waited_s: float) -> tuple[Silence, Verdict]:
    """Judge one answer of the witness, which came at that time. `waited_s`: the lease that must pass in silence."""
    if silence is None:
        return Silence(seen, answered_at_s), Verdict.WAIT
    if seen != silence.term:
        return silence, Verdict.SERVES
    return silence, Verdict.TAKE if answered_at_s - silence.since_s >= waited_s else Verdict.WAIT


def is_superseded(seen: Term | None, log_id: str) -> bool:
    """Whether an earlier term named that log: the records of the terms after it may be missing there."""
    return seen is not None and log_id != seen.log_id and log_id in seen.former_logs


def next_term(seen: Term | None, site: str, log_id: str, lease_s: float) -> Term:
    """The term that follows."""
    if seen is None:
        return Term(1, site, log_id, lease_s)
    former = [one for one in (*seen.former_logs, seen.log_id) if one != log_id]
    return replace(
        seen,
        number=seen.number + 1,
        site=site,
        log_id=log_id,
        lease_s=lease_s,
        beat=0,
        former_logs=tuple(dict.fromkeys(former)),
    )
