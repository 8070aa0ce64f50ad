"""A log that a power cut may shorten, and the marks that must show it, in miniature: two replicas, every interleaving.

A record is the number of the life of the log in which it was appended: 0 before the cut, 1 after it. Lengths stand for
offsets. One cut takes any tail. What was in flight may land after it, unasked, so that the log grows again. A replica
serves after the cut once it has compared the marks that it finds with the log; either may be away.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

RECORDS_MAX = 4
LEAD = 1  # records by which answers may be ahead of what is covered
LANDINGS_MAX = 2  # records in flight that land after the cut


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules a design keeps. The defaults are ours."""

    bounds_lead: bool = True  # else answers run ahead of marks as far as they like
    covers_at_peer: bool = True  # else a record counts as covered once the answering replica's own file has it
    compares_digest: bool = True  # else the log's length alone is compared
    compares_published: bool = True  # else only seen files are marks
    compares_first: bool = True  # else a replica appends before it has compared anything


OURS = Rules()


class State(NamedTuple):
    """`files`: how long the log was as each replica's seen file has it on its disk. `covered`, `kept`: up to where
    answers were covered when the power was cut, and the log was left; -1: it was not cut yet."""

    log: tuple[int, ...] = ()
    answered: int = 0
    published: int = 0
    files: tuple[int, int] = (0, 0)
    covered: int = -1
    kept: int = -1
    landed: int = 0
    serves: bool = False  # somebody, after the cut

    @property
    def is_cut(self) -> bool:
        """Whether the power was cut."""
        return self.covered >= 0


class Violation(StrEnum):
    """What a client sees."""

    COVERED = "an answer whose record was covered is lost, and somebody serves"
    AHEAD = "more answers are lost without a mark than the lead allows, and somebody serves"


def successors(state: State, rules: Rules) -> Iterator[tuple[str, State]]:
    """Everything that can happen next, each with a name for the story."""
    if state.is_cut:
        yield from _after(state, rules)
        return
    end = len(state.log)
    if end < RECORDS_MAX:
        yield "a record is appended", state._replace(log=(*state.log, 0))
    if state.answered < end and (not rules.bounds_lead or state.answered - _covered(state, rules) < LEAD):
        yield "A answers", state._replace(answered=state.answered + 1)
    if state.published < state.answered:
        yield "it is published", state._replace(published=state.answered)
    for at, name in enumerate("AB"):
        if state.files[at] < end:
            yield f"{name} syncs its seen file", state._replace(files=_with(state.files, at, end))
    for kept in range(end + 1):
        cut = state._replace(log=state.log[:kept], covered=_covered(state, OURS), kept=kept)
        yield f"all power is cut, {kept} of {end} records are left", cut


def _covered(state: State, rules: Rules) -> int:
    own, peer = state.files
    return max(state.published, min(own, peer) if rules.covers_at_peer else own)


def _after(state: State, rules: Rules) -> Iterator[tuple[str, State]]:
    if state.landed < LANDINGS_MAX and len(state.log) < RECORDS_MAX:
        yield "what was in flight lands", state._replace(log=(*state.log, 1), landed=state.landed + 1)
    for at, name in enumerate("AB"):
        marks = [state.files[at], *([state.published] if rules.compares_published else [])]
        if not rules.compares_first or all(_holds(state, mark, rules) for mark in marks):
            yield f"{name} starts alone, and serves", state._replace(serves=True)


def _holds(state: State, mark: int, rules: Rules) -> bool:
    if len(state.log) < mark:
        return False
    return not mark or not rules.compares_digest or state.log[mark - 1] == 0


def _with(files: tuple[int, int], at: int, length: int) -> tuple[int, int]:
    return (length, files[1]) if at == 0 else (files[0], length)


def violation(state: State) -> str | None:
    """What is wrong with a state; None, one hopes."""
    if not state.serves or state.kept >= state.answered:
        return None
    if state.kept < state.covered:
        return Violation.COVERED
    return Violation.AHEAD if state.answered - state.covered > LEAD else None
